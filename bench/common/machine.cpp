#include "bench/common/machine.h"

#include "model/train/rank/agreed.h"
#include "model/train/rank/startup.h"

namespace zs::bench {
namespace {

/// As in the trainer: a step may take longer than the longest wait for a peer inside one of its operations.
constexpr double kStepTimeouts = 20;

}  // namespace

PlanOptions Machine::plan_options(const World& world, const Config& config, int threads) const {
  PlanOptions options = zs::plan_options(world, threads);
  return device_kind(config) == DeviceKind::cuda ? on_gpus(std::move(options), config, gpus) : options;
}

DeviceOptions Machine::device_options(const Config& config, const CpuShare& share) const {
  DeviceOptions options = gpu_options(config, gpus.gpu);
  options.threads = share.threads;
  options.cpus = share.cpus;
  options.sync_timeout_s = kStepTimeouts * config.comm.timeout_s;
  return options;
}

NcclOptions Machine::nccl_options(const Config& config) const {
  if (device_kind(config) != DeviceKind::cuda) return {};
  NcclOptions options = zs::nccl_options(config);
  options.table = nccl;
  register_memory(options, config, gpus.transport);
  return options;
}

std::unique_ptr<World> Machine::connect(World& world, Device& device, const NcclOptions& options) const {
  if (device.kind() != DeviceKind::cuda) return nullptr;
  return make_gpu_world(world, device, gpus.transport, options);
}

ExitCode take_gpus(World& world, const Config& config, const std::string& program, Machine& machine) {
  int code = find_gpus(world, config, world.size(), machine.gpus, program);
  if (code == 0)
    code = agreed(
        world, [&] { check_device(config, machine.gpus.gpu); }, program);
  return static_cast<ExitCode>(code);
}

}  // namespace zs::bench
