#pragma once

#include <atomic>

#include "tests/gpu/emulation/emulated_driver.h"

namespace zs::test {

/// The driver's functions are plain functions: whose they are, and the calling thread's context.
extern std::atomic<EmulatedDriver*> active_driver;
extern thread_local const CUctx_st* current_context;

/// The table of them. What each does is done under the driver's lock.
const CudaDriver& emulated_functions();

}  // namespace zs::test
