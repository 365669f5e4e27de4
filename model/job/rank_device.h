#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "comm/gpu/gpu_world.h"
#include "comm/health/status_scope.h"
#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs {

/// Options by which the trainer and zs::run make a rank's device.
struct RankDeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  DeviceOptions device = {};               ///< but for `memory`, which is chosen here, and `sync_timeout_s`
  double timeout_s = 300;                  ///< longest wait for a peer inside one operation
  Transport transport = Transport::local;  ///< between GPUs, see GpuRanks
  NcclOptions nccl = {};
  bool registers_memory = false;  ///< the slab is registered with NCCL, where that is the transport and can
  /// Function that makes the device; none: Device::create.
  std::function<std::unique_ptr<Device>(const DeviceOptions& options)> create = {};
};

/// The device that one rank computes on, with memory that needs no copy on its way to other ranks, and what moves bytes
/// between the ranks' devices. Collective to make. One host thread uses it; `world` outlives it.
class RankDevice {
 public:
  RankDevice(World& world, RankDeviceOptions options);

  Device& device() { return *device_; }
  World& world() { return gpu_world_ ? *gpu_world_ : base_; }
  /// True if world() is another world than the ranks' own.
  bool has_gpu_world() const { return gpu_world_ != nullptr; }

 private:
  World& base_;
  NcclOptions nccl_;
  std::unique_ptr<Device> device_;
  std::optional<StatusScope> observed_;
  std::unique_ptr<World> gpu_world_;  // null: base_ itself moves what is on the device
};

}  // namespace zs
