// What accumulates of gradients, on its way to the host between micro-batches and back.
#include <algorithm>

#include "runtime/shard/scheduler.h"

namespace zs {

/// A step's last micro-batch takes what it adds to.
bool Scheduler::is_parked_now(int unit) const {
  const ExecOrder& order = orders_[static_cast<std::size_t>(mode_)];
  if (!unit_at(unit).parks || is_last_ || !order.is_recorded()) return false;
  const auto &forward = order.units(ExecOrder::Phase::forward), &backward = order.units(ExecOrder::Phase::backward);
  return !forward.empty() && forward.back() != unit && !backward.empty() && backward.front() != unit;
}

void Scheduler::park(std::vector<Action>& actions, int unit) {
  const Unit& target = unit_at(unit);
  if (!is_parked_now(unit)) return;
  if (target.grad == GradState::accumulating || target.grad == GradState::reloading)
    emit(actions, Action::Kind::park_gradient, unit);
  if (target.sum == SumState::partial) emit(actions, Action::Kind::park_sum, unit);
}

void Scheduler::reload(std::vector<Action>& actions, int unit) {
  if (unit_at(unit).grad == GradState::parked) emit(actions, Action::Kind::reload_gradient, unit);
  const bool is_added_to = is_due(unit) || is_last_;
  if (is_added_to && unit_at(unit).sum == SumState::parked) emit(actions, Action::Kind::reload_sum, unit);
}

/// Beside the backward of the unit that runs, that of the next one at least.
void Scheduler::reload_ahead(std::vector<Action>& actions) {
  for (const int unit : order().upcoming(ExecOrder::Phase::backward, std::max(1, options_.prefetch)))
    if (unit_at(unit).grad == GradState::parked) emit(actions, Action::Kind::reload_gradient, unit);
}

void Scheduler::resume(std::vector<Action>& actions, int unit) {
  reload(actions, unit);
  if (unit_at(unit).grad == GradState::reloading) emit(actions, Action::Kind::resume_gradient, unit);
}

}  // namespace zs
