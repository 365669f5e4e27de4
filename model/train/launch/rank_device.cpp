#include "model/train/launch/rank_device.h"

#include "comm/nccl_memory.h"
#include "model/train/launch/startup.h"

namespace zs {
namespace {

/// A step of many operations may take longer than the longest wait for a peer inside one of them.
constexpr double kStepTimeouts = 20;

}  // namespace

RankDevice::RankDevice(World& world, const Config& config, const GpuRanks& gpus, const TrainPlan& plan,
                       const CpuShare& share)
    : base_(world) {
  DeviceOptions options = gpu_options(config, gpus.gpu);
  options.threads = share.threads;
  options.cpus = share.cpus;
  options.sync_timeout_s = kStepTimeouts * config.comm.timeout_s;
  if (plan.device == DeviceKind::cpu) options.memory = world.arena();
  if (plan.device == DeviceKind::cuda) {
    nccl_ = nccl_options(config);
    register_memory(nccl_, config, gpus.transport);
    options.memory = nccl_.memory.get();
  }
  device_ = plan.create_device(options);
  observed_.emplace(world.watchdog(), *device_);
  if (plan.device == DeviceKind::cuda) gpu_world_ = make_gpu_world(world, *device_, gpus.transport, nccl_);
}

}  // namespace zs
