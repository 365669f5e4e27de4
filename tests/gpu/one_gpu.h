#pragma once

#include <memory>
#include <string>

#include "runtime/device/cuda_context.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/emulated_driver.h"

namespace zs::test {

/// The GPU of a test with one rank: an emulated one, or, where tests run on a GPU (is_on_real_gpu), the first that is
/// there. Outlives the devices on it.
class OneGpu {
 public:
  explicit OneGpu(const EmulatedDriver::Options& emulation);

  /// For a CudaDevice.
  CudaContext::Libraries libraries() const;
  /// Null on a real GPU.
  EmulatedDriver* emulated() const { return driver_.get(); }
  EmulatedCublas* emulated_cublas() const { return cublas_.get(); }
  /// Of a function of the emulated driver; 0 on a real GPU, where nobody counts.
  int calls(const std::string& function) const { return driver_ ? driver_->calls(function) : 0; }

 private:
  std::unique_ptr<EmulatedDriver> driver_;
  std::unique_ptr<EmulatedCublas> cublas_;
};

}  // namespace zs::test
