#include "model/train/plan/recompute_choice.h"

#include <algorithm>

namespace zs {
namespace {

/// "blocks.{0-3}=block"
std::string entry(std::int64_t first, std::int64_t end, const char* part) {
  if (end - first == 1) return fmt::format("blocks.{}={}", first, part);
  return fmt::format("blocks.{{{}-{}}}={}", first, end - 1, part);
}

MemoryDemand with(MemoryDemand demand, const RecomputeSet& set) {
  demand.config.train.recompute = set.entries(demand.config.model.layers);
  return demand;
}

TrainPlan planned(const MemoryDemand& demand, const RecomputeSet& set) {
  return make_plan(with(demand, set).config, demand.plan);
}

/// All but none, the cheapest first; of many blocks in steps of several, so that there are no more than 91.
std::vector<RecomputeSet> sets_by_cost(std::int64_t blocks, const RecomputeCost& cost) {
  constexpr std::int64_t kMostSteps = 12;
  const std::int64_t steps = std::min(blocks, kMostSteps);
  const auto count = [&](std::int64_t step) { return (step * blocks + steps - 1) / steps; };
  std::vector<RecomputeSet> sets;
  for (std::int64_t whole = 0; whole <= steps; ++whole)
    for (std::int64_t both = std::max<std::int64_t>(whole, 1); both <= steps; ++both)
      sets.push_back({count(whole), count(both) - count(whole)});
  std::stable_sort(sets.begin(), sets.end(),
                   [&](const RecomputeSet& a, const RecomputeSet& b) { return cost.of(a) < cost.of(b); });
  return sets;
}

}  // namespace

std::vector<std::string> RecomputeSet::entries(std::int64_t blocks) const {
  if (whole == blocks) return {"block"};
  if (attention == blocks) return {"attention"};
  std::vector<std::string> entries;
  if (whole > 0) entries.push_back(entry(0, whole, "block"));
  if (attention > 0) entries.push_back(entry(whole, whole + attention, "attention"));
  return entries.empty() ? std::vector<std::string>{"none"} : entries;
}

RecomputeCost recompute_cost(const TrainPlan& plan, const Config& config) {
  RecomputeCost cost;
  const Config::Model& model = config.model;
  // Each query meets half of the keys, twice: for its scores and for its values.
  cost.whole = cost.attention = 2.0 * static_cast<double>(config.train.sequence * model.heads) *
                                static_cast<double>(model.head_dim > 0 ? model.head_dim : model.width / model.heads);
  for (const TrainPlan::Unit& unit : plan.units)
    for (const FlatView& view : unit.layout->views()) {
      const auto has = [&](const char* part) { return view.name.find(part) != std::string::npos; };
      if (!view.name.starts_with("blocks.0.") || view.shape.rank() != 2) continue;
      const double flops = 2.0 * static_cast<double>(view.shape.numel());
      if (!has(".mlp.down.")) cost.whole += flops;
      if (has(".attention.") && !has(".attention.out.")) cost.attention += flops;
    }
  return cost;
}

bool fits(const MemoryDemand& demand, const RecomputeSet& set, const std::vector<MemoryBudget>& budgets) {
  return exceeded(demand, planned(demand, set).rank_bytes(), budgets) == nullptr;
}

RecomputeSet choose_recompute(const MemoryDemand& demand, const std::vector<MemoryBudget>& budgets) {
  const std::int64_t blocks = demand.config.model.layers;
  const TrainPlan none = planned(demand, {});
  if (exceeded(demand, none.rank_bytes(), budgets) == nullptr) return {};
  // Savings of a set are no sum over its blocks: where buffers find room depends on all of them.
  for (const RecomputeSet& set : sets_by_cost(blocks, recompute_cost(none, demand.config)))
    if (fits(demand, set, budgets)) return set;
  return {.whole = blocks};
}

}  // namespace zs
