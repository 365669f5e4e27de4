#pragma once

#include <memory>
#include <optional>

#include "comm/health/status_scope.h"
#include "comm/world.h"
#include "model/train/config/config.h"
#include "model/train/launch/gpu_ranks.h"
#include "model/train/plan/plan.h"
#include "runtime/device/cpu_topology.h"

namespace zs {

/// The device that one rank computes on, with the memory that a plan asks for, and what moves bytes between the ranks'
/// devices. Collective to make. One host thread uses it; `world` outlives it.
class RankDevice {
 public:
  RankDevice(World& world, const Config& config, const GpuRanks& gpus, const TrainPlan& plan, const CpuShare& share);

  Device& device() { return *device_; }
  World& world() { return gpu_world_ ? *gpu_world_ : base_; }
  /// Whether that is another world than the ranks' own.
  bool has_gpu_world() const { return gpu_world_ != nullptr; }

 private:
  World& base_;
  NcclOptions nccl_;
  std::unique_ptr<Device> device_;
  std::optional<StatusScope> observed_;
  std::unique_ptr<World> gpu_world_;  // null: base_ itself moves what is on the device
};

}  // namespace zs
