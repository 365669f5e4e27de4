#pragma once

/// \file zshard/run.h
/// zs::run is a program's main function on each rank: it makes world, device and context, prints one line for an error,
/// and gives the exit code.

#include "model/job/gpu_options.h"
#include "model/job/run.h"
