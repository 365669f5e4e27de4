#pragma once

#include <memory>

#include "runtime/device/cublas_lt.h"
#include "runtime/device/cuda_gpu.h"

namespace zs::test {

/// Whether the tests of the CUDA back end run on a GPU of this machine instead of emulated ones: ZSHARD_TEST_GPU=1,
/// which tests/gpu/run sets.
bool is_on_real_gpu();

/// The driver of this machine as one with which everything is done when a call returns, for tests that look at results
/// at once.
std::shared_ptr<const CudaDriver> real_driver_done_at_once();
/// The same of cuBLASLt.
std::shared_ptr<const CublasLt> real_cublas_done_at_once();

}  // namespace zs::test
