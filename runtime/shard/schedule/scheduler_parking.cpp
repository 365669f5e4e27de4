// Accumulating gradients, on their way to the host between micro-batches and back.
#include <algorithm>

#include "runtime/shard/schedule/scheduler.h"

namespace zs {

bool Scheduler::is_parked_between(int unit) const {
  const ExecOrder& order = orders_[static_cast<std::size_t>(Mode::train)];
  if (!unit_at(unit).parks || !order.is_recorded()) return false;
  const auto &forward = order.units(ExecOrder::Phase::forward), &backward = order.units(ExecOrder::Phase::backward);
  return !forward.empty() && forward.back() != unit && !backward.empty() && backward.front() != unit;
}

void Scheduler::park(std::vector<Action>& actions, int unit) {
  const Unit& target = unit_at(unit);
  if (is_last_ || !is_parked_between(unit)) return;  // the last micro-batch takes what it adds to
  if (target.grad == GradState::accumulating || target.grad == GradState::reloading)
    emit(actions, Action::Kind::park_gradient, unit);
  if (target.parks_sum && target.sum == SumState::partial) emit(actions, Action::Kind::park_sum, unit);
}

void Scheduler::reload_gradient(std::vector<Action>& actions, int unit) {
  if (unit_at(unit).grad == GradState::parked) emit(actions, Action::Kind::reload_gradient, unit);
}

void Scheduler::reload_sum(std::vector<Action>& actions, int unit) {
  if (unit_at(unit).sum == SumState::parked) emit(actions, Action::Kind::reload_sum, unit);
}

/// Beside the backward of the unit that runs, that of the next one at least.
void Scheduler::reload_ahead(std::vector<Action>& actions) {
  for (const int unit : order().upcoming(ExecOrder::Phase::backward, std::max(1, options_.prefetch)))
    reload_gradient(actions, unit);
}

void Scheduler::resume(std::vector<Action>& actions, int unit) {
  reload_gradient(actions, unit);
  if (unit_at(unit).grad == GradState::reloading) emit(actions, Action::Kind::resume_gradient, unit);
}

}  // namespace zs
