#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace zs::test {

inline std::unique_ptr<Device> cpu_device(DeviceOptions options = {}) { return Device::create(DeviceKind::cpu, options); }

/// A deadline for tests whose failure would be a hang.
inline DeviceOptions patient() {
  DeviceOptions options;
  options.sync_timeout_s = 30;
  return options;
}

}  // namespace zs::test
