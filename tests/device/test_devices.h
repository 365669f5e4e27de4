#pragma once

#include <memory>

#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/emulated_driver.h"
#include "tests/gpu/real_gpu.h"

namespace zs::test {

inline std::unique_ptr<Device> cpu_device(DeviceOptions options = {}) {
  return Device::create(DeviceKind::cpu, options);
}

/// The driver's stream of this role, of a CUDA device.
inline void* native(Device& device, StreamRole role) {
  void* stream = nullptr;
  device.stream(role).enqueue({"ask"}, [&](ExecContext& exec) { stream = exec.native_stream(); });
  return stream;
}

/// A deadline for tests whose failure would be a hang.
inline DeviceOptions patient() {
  DeviceOptions options;
  options.sync_timeout_s = 30;
  return options;
}

/// A device of any kind; the CUDA one on an emulated driver, or the GPU of this machine where the tests are on it.
class TestDevice {
 public:
  explicit TestDevice(DeviceKind kind) {
    if (kind == DeviceKind::cuda && is_on_real_gpu()) {
      device_ = std::make_unique<CudaDevice>(patient(), open_cuda_driver());
    } else if (kind == DeviceKind::cuda) {
      driver_ = std::make_unique<EmulatedDriver>();
      device_ = std::make_unique<CudaDevice>(patient(), driver_->table());
    } else {
      device_ = Device::create(kind, patient());
    }
  }
  Device* operator->() const { return device_.get(); }

 private:
  std::unique_ptr<EmulatedDriver> driver_;  // outlives the device
  std::unique_ptr<Device> device_;
};

}  // namespace zs::test
