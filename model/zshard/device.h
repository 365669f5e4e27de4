#pragma once

/// \file zshard/device.h
/// Where work runs: a zs::Device with its streams, events, pool of memory and pinned memory. A call that enqueues
/// returns before the work is done; what fails on a stream is thrown by the next synchronize. zs::run makes a device;
/// one host thread uses it.

#include "runtime/device/cpu_topology.h"
#include "runtime/device/device.h"
#include "runtime/device/pinned_memory.h"
