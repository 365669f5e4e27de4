#pragma once

/// \file zshard/error.h
/// What the library throws. A zs::Error has what happened, where, what to do about it, and the exit code of the program
/// that dies of it. A zs::UsageError is a call that could not be done as things stand, and has changed nothing.

#include "runtime/base/check.h"
#include "runtime/base/usage_error.h"
