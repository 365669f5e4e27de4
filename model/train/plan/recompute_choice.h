#pragma once

#include <compare>
#include <string>
#include <vector>

#include "model/train/plan/memory_check.h"

namespace zs {

/// Blocks that backward computes again: of the first, all; of those after them, what attention makes. The first ones'
/// activations are kept the longest: they are all there when a step needs most, whichever block is at work then.
struct RecomputeSet {
  std::int64_t whole = 0, attention = 0;
  auto operator<=>(const RecomputeSet&) const = default;

  /// Entries of train.recompute that say this for a model of so many blocks.
  std::vector<std::string> entries(std::int64_t blocks) const;
};

/// The set that costs the fewest FLOPs of those with which the run fits, found by planning them; where none does, all
/// of all blocks. Of a model of more than 12 blocks the sets are those of a twelfth of them each.
RecomputeSet choose_recompute(const MemoryDemand& demand, const std::vector<MemoryBudget>& budgets);

/// True if the run fits with this set.
bool fits(const MemoryDemand& demand, const RecomputeSet& set, const std::vector<MemoryBudget>& budgets);

/// FLOPs of a token that the parts of one block take once more, by the sizes of its matrices.
struct RecomputeCost {
  double whole = 0, attention = 0;
  double of(const RecomputeSet& set) const {
    return whole * static_cast<double>(set.whole) + attention * static_cast<double>(set.attention);
  }
};
RecomputeCost recompute_cost(const TrainPlan& plan, const Config& config);

}  // namespace zs
