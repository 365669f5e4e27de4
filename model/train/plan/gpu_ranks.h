#pragma once

#include <span>
#include <string>

#include "comm/gpu/gpu_world.h"
#include "comm/world.h"
#include "model/job/rank_device.h"
#include "model/job/rank_gpus.h"
#include "model/train/config/config.h"
#include "model/train/plan/memory_check.h"
#include "model/train/plan/plan.h"
#include "model/train/rank/error_line.h"
#include "runtime/device/cpu_topology.h"

/// GPUs of a run's ranks: on which each computes, and what connects them, as its configuration says.
namespace zs {

/// Options that a configuration has for GPUs.
GpuOptions gpu_options_of(const Config::Cuda& cuda);
/// Chooses the transport by GpuOptions' rules; Error(config) where the configuration wants graphs of steps and ranks
/// are staged.
GpuRanks choose_gpu_transport(std::span<const RankGpu> ranks, const Config::Cuda& wanted);

/// Collective, before anything is allocated: 0, or the exit code of all ranks, of which one prints why. Where the
/// configuration's device is no GPU: nothing. `planned_ranks`: as many as the world's, or, for the plan of one rank
/// alone, as many as this host would have. `program`: in whose name it is printed.
int find_gpus(World& world, const Config& config, int planned_ranks, GpuRanks& found,
              std::string_view program = program_name());

/// A plan for hosts as one for their GPUs.
PlanOptions on_gpus(PlanOptions plan, const Config& config, const GpuRanks& gpus);
/// A demand for the hosts' memory as one for that of GPUs.
MemoryDemand on_gpus(MemoryDemand demand, const GpuRanks& gpus);
/// Description for people: "nccl, started over shm".
std::string describe_transport(const World& base, const GpuRanks& gpus);

/// The device of this rank, as the plan has it, which it is made with: the plan outlives them.
RankDeviceOptions rank_device_options(const Config& config, const GpuRanks& gpus, const TrainPlan& plan,
                                      const CpuShare& share);
NcclOptions nccl_options(const Config& config);
/// Gives them memory that is registered, where NCCL is the transport, has it, and `cuda.register` asks for it: for
/// DeviceOptions::memory.
void register_memory(NcclOptions& nccl, const Config& config, Transport transport);
/// Description for people, once there are communicators: "nccl: 1.2 GiB registered with 3 communicators"; nothing where
/// nobody asks for that.
std::string describe_registration(const World& world, const Config& config);

}  // namespace zs
