#pragma once

/// \file zshard/version.h
/// Which version of the library a program runs with.

#include "model/job/version.h"
