#include "model/train/plan/resident_choice.h"

#include <algorithm>

namespace zs {
namespace {

TrainPlan planned(MemoryDemand demand, std::int64_t units) {
  demand.config.offload.resident_units = {.value = units};
  return make_plan(demand.config, demand.plan);
}

}  // namespace

std::int64_t choose_resident_units(const MemoryDemand& demand, const std::vector<MemoryBudget>& budgets,
                                   std::int64_t most) {
  const auto fits = [&](const TrainPlan& plan) { return exceeded(demand, plan.rank_bytes(), budgets) == nullptr; };
  const TrainPlan all = planned(demand, most);
  std::int64_t exceeding = std::min<std::int64_t>(most, std::ssize(all.units));
  if (fits(all)) return exceeding;
  std::int64_t fitting = 0;
  while (exceeding - fitting > 1) {
    const std::int64_t units = fitting + (exceeding - fitting) / 2;
    (fits(planned(demand, units)) ? fitting : exceeding) = units;
  }
  return fitting;
}

}  // namespace zs
