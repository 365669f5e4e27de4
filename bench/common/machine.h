#pragma once

#include <memory>

#include "bench/kernels/gpu_ceilings.h"
#include "comm/world.h"
#include "model/train/plan/gpu_ranks.h"
#include "model/train/plan/plan.h"
#include "runtime/device/cpu_topology.h"

namespace zs::bench {

/// What one rank of a benchmark computes on and exchanges through, beside its world and its configuration.
struct Machine {
  GpuRanks gpus = {};  ///< what the ranks agree on, where they compute on GPUs
  // Others than these only in tests.
  TrainPlan::MakeDevice make_device = Device::create;
  GpuCeilingSizes gpu_ceilings = {};
  std::shared_ptr<const NcclLibrary> nccl = nullptr;  ///< instead of the library

  /// The plan of a training step of this rank, whose communicators are those of `connect`.
  PlanOptions plan_options(const World& world, const Config& config, int threads) const;
  /// Of this rank's device, without memory and sizes, which are the plan's.
  DeviceOptions device_options(const Config& config, const CpuShare& share) const;
  /// With memory that NCCL has registered where it registers any, as in a training: for DeviceOptions::memory of the
  /// device that is connected, which it outlives. Empty on the CPU.
  NcclOptions nccl_options(const Config& config) const;
  /// What moves the bytes between the GPUs of `world`'s ranks; both and `device` outlive it. Null where `world` itself
  /// does. Collective.
  std::unique_ptr<World> connect(World& world, Device& device, const NcclOptions& options) const;
};

/// Collective: which GPU each rank has and what connects them, once each can be used. Else the exit code of all ranks,
/// of which one has printed why in the program's name. Where the configuration's device is the CPU: nothing.
ExitCode take_gpus(World& world, const Config& config, const std::string& program, Machine& machine);

}  // namespace zs::bench
