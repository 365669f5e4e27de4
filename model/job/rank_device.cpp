#include "model/job/rank_device.h"

#include "comm/nccl/nccl_memory.h"
#include "model/job/rank_gpus.h"

namespace zs {
namespace {

/// A step of many operations may take longer than the longest wait for a peer inside one of them.
constexpr double kStepTimeouts = 20;

}  // namespace

RankDevice::RankDevice(World& world, RankDeviceOptions options) : base_(world), nccl_(std::move(options.nccl)) {
  options.device.sync_timeout_s = kStepTimeouts * options.timeout_s;
  if (options.kind == DeviceKind::cpu) options.device.memory = world.arena();
  if (options.kind == DeviceKind::cuda) {
    if (options.registers_memory && options.transport == Transport::nccl) nccl_.memory = make_nccl_memory(nccl_);
    options.device.memory = nccl_.memory.get();
  }
  device_ = options.create ? options.create(options.device) : Device::create(options.kind, options.device);
  observed_.emplace(world.watchdog(), *device_);
  if (options.kind == DeviceKind::cuda) gpu_world_ = make_gpu_world(world, *device_, options.transport, nccl_);
}

}  // namespace zs
