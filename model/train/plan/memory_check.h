#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/train/plan/memory_budget.h"

namespace zs {

/// Another run that does the same training, and how to get there: "set train.micro_batch=2".
struct MemoryChange {
  MemoryDemand demand;
  std::string text;
  std::int64_t rank_bytes = 0;  ///< bytes of the device
  std::int64_t host_bytes = 0;  ///< bytes of the host, beside it
  RankBytes::OnDisk disk_bytes = {};

  RankBytes bytes() const { return {rank_bytes, host_bytes, disk_bytes}; }
};

/// The single change that makes a run fit, found by planning again, in the order that docs/memory.md lists; nothing
/// when none is enough.
std::optional<MemoryChange> smallest_change(const MemoryDemand& demand, const std::vector<MemoryBudget>& budgets);

/// All changes of the configuration at once.
MemoryChange least_memory(const MemoryDemand& demand);

/// A line for each budget, and, where one is exceeded, the smallest change that fits.
std::string describe_budgets(const MemoryDemand& demand, const RankBytes& rank_bytes,
                             const std::vector<MemoryBudget>& budgets);

/// Error(out_of_memory) for a run that exceeds a budget: what it needs, what there is, and the smallest change that
/// fits.
Error memory_refusal(const MemoryDemand& demand, const RankBytes& rank_bytes, const std::vector<MemoryBudget>& budgets);

}  // namespace zs
