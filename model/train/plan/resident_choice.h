#pragma once

#include <vector>

#include "model/train/plan/memory_check.h"

namespace zs {

/// Bound of offload.resident_units: more than a model has.
constexpr std::int64_t kMostResidentUnits = 1 << 20;

/// Number of first units for which the device keeps what the host keeps of the others (offload.resident_units): as many
/// as there are, and at most `most`, with which the run fits, found by planning it; 0 where none does.
std::int64_t choose_resident_units(const MemoryDemand& demand, const std::vector<MemoryBudget>& budgets,
                                   std::int64_t most = kMostResidentUnits);

}  // namespace zs
