#pragma once

#include <memory>

#include "model/train/plan.h"
#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"

namespace zs::test {

/// A GPU for benchmarks, whose name is "Emulated". Where the host touches its memory, the test ends by a signal.
struct Emulated {
  EmulatedDriver driver{{.is_guarded = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};

  std::unique_ptr<Device> make(const DeviceOptions& options = {}) {
    return std::make_unique<CudaDevice>(options, CudaContext::Libraries(driver.table(), cublas.table()));
  }
  TrainPlan::MakeDevice maker() {
    return [this](DeviceKind kind, const DeviceOptions& options) {
      return kind == DeviceKind::cuda ? make(options) : Device::create(kind, options);
    };
  }
};

}  // namespace zs::test
