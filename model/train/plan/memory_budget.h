#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/train/plan/plan.h"
#include "runtime/device/memory_limit.h"

namespace zs {

/// Budget that a run has of one limit.
struct MemoryBudget {
  std::int64_t bytes = 0;
  bool is_per_process = false;  ///< else all ranks of the host share it
  std::string source;           ///< "90 % of physical memory, 23.5 GiB"
  /// Memory that counts: all, the device's, the host's; the files in `folder`.
  enum class Of : std::uint8_t { all, device, host, disk } of = Of::all;
  bool is_per_rank = false;  ///< each rank has as much
  std::string folder = {};
};

/// Budgets from limits that every process of the run has alike; each process starts `threads` more threads.
std::vector<MemoryBudget> memory_budgets(const std::vector<MemoryLimit>& limits, int threads);

/// Adds the budgets that the configuration names: offload.device_mib, offload.host_mib.
void add_offload_budgets(const Config& config, std::vector<MemoryBudget>& budgets);

/// Adds what is free on the disks that the configuration names (offload.* = "disk:FOLDER"). Error(config) for one that
/// is memory.
void add_disk_budgets(const Config& config, std::vector<MemoryBudget>& budgets);

/// A run as far as memory is concerned. `local_ranks` of its ranks are on each host.
struct MemoryDemand {
  Config config;
  PlanOptions plan;
  int local_ranks = 1;
  int gpus = 0;  ///< GPUs of each host, whose memory it is that is asked for; 0: the hosts' own
};

/// Bytes of a budget that the ranks which share it need, when each needs `rank_bytes`.
std::int64_t needed_bytes(const MemoryDemand& demand, const RankBytes& rank_bytes, const MemoryBudget& budget);

/// The budget that is exceeded by the largest part; null when all are kept.
const MemoryBudget* exceeded(const MemoryDemand& demand, const RankBytes& rank_bytes,
                             const std::vector<MemoryBudget>& budgets);

}  // namespace zs
