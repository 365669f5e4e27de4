#include "runtime/shard/schedule/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/usage_error.h"

namespace zs {

namespace {

constexpr const char* kBegin =
    "begin one first: micro_batch() of the model, or begin_micro_batch(), for training with Mode::train";

/// True if a gradient in this state holds what micro-batches have added so far, wherever that is.
bool accumulates(GradState state) { return state != GradState::none && state != GradState::reducing; }

template <class State>
bool apply(Action::Kind kind, State& state) {
  const auto next = after(kind, state);
  if (next) state = *next;
  return next.has_value();
}

}  // namespace

Scheduler::Scheduler(std::vector<std::string> unit_names, const PrefetchOptions& options, const UnitSchedule& schedule)
    : options_(options) {
  ZS_CHECK(!unit_names.empty(), "a scheduler needs at least the root unit");
  if (options.prefetch < 0 || options.limit < 0 || options.max_reductions_in_flight < 1)
    throw UsageError(fmt::format("PrefetchOptions with prefetch {}, limit {} and max_reductions_in_flight {}",
                                 options.prefetch, options.limit, options.max_reductions_in_flight),
                     "the first two are 0 or more, the third 1 or more");
  for (std::string& name : unit_names) units_.push_back({.name = std::move(name), .schedule = schedule});
}

const Scheduler::Unit& Scheduler::unit_at(int unit) const {
  if (unit < 0 || unit >= size()) [[unlikely]]
    throw UsageError(fmt::format("unit {} of {}", unit, size()), "units are counted from 0");
  return units_[static_cast<std::size_t>(unit)];
}

Scheduler::Unit& Scheduler::unit_at(int unit) { return const_cast<Unit&>(std::as_const(*this).unit_at(unit)); }

std::string Scheduler::refusal(const Unit& unit, const char* operation) {
  return fmt::format("unit {} cannot {}: it is {} with {}", unit.name, operation, name_of(unit.state),
                     name_of(unit.grad));
}

void Scheduler::refuse(const Unit& unit, const char* operation, const char* what_to_do) {
  throw UsageError(refusal(unit, operation), what_to_do);
}

void Scheduler::emit(std::vector<Action>& actions, Action::Kind kind, int unit) {
  Unit& target = unit_at(unit);
  if (!apply(kind, target.state) || !apply(kind, target.shard) || !apply(kind, target.grad) ||
      !apply(kind, target.sum)) {
    throw Error(ExitCode::internal, refusal(target, name_of(kind)));
  }
  actions.push_back({kind, unit});
}

/// Units other than the root whose full parameters are on their way or in use.
int Scheduler::in_flight() const {
  const auto counts = [](const Unit& unit) {
    return unit.state == UnitState::gathering ||
           (unit.state == UnitState::unsharded && (unit.in_forward || unit.in_backward));
  };
  return static_cast<int>(std::count_if(units_.begin() + 1, units_.end(), counts));
}

void Scheduler::free_used(std::vector<Action>& actions, int unit) {
  const bool is_limited = unit != kRoot && options_.limit > options_.prefetch + 1;
  emit(actions, is_limited ? Action::Kind::defer_free : Action::Kind::free_full, unit);
  if (is_limited) deferred_.push_back(unit);
}

void Scheduler::free_oldest_deferred(std::vector<Action>& actions) {
  emit(actions, Action::Kind::free_deferred, deferred_.front());
  deferred_.pop_front();
}

void Scheduler::gather(std::vector<Action>& actions, int unit) {
  while (unit != kRoot && !deferred_.empty() && in_flight() + std::ssize(deferred_) >= options_.limit)
    free_oldest_deferred(actions);
  if (unit_at(unit).shard == ShardState::kept) {
    emit(actions, Action::Kind::gather_secondary, unit);
    if (unit_at(unit).schedule.kept == UnitSchedule::Kept::of_forward)
      emit(actions, Action::Kind::drop_secondary_shard, unit);
  } else {
    emit(actions,
         unit_at(unit).schedule.kept == UnitSchedule::Kept::of_gather ? Action::Kind::two_level_gather
                                                                      : Action::Kind::gather,
         unit);
  }
}

void Scheduler::unshard(std::vector<Action>& actions, int unit) {
  if (unit_at(unit).state == UnitState::sharded) gather(actions, unit);
  if (unit_at(unit).state == UnitState::gathering) emit(actions, Action::Kind::wait_gathered, unit);
}

void Scheduler::reshard(std::vector<Action>& actions, int unit) {
  if (unit_at(unit).state == UnitState::unsharded) free_used(actions, unit);
  if (unit_at(unit).state == UnitState::gathering) emit(actions, Action::Kind::free_full, unit);
  // The optimizer comes next, and makes it old.
  if (is_last_ && unit_at(unit).shard == ShardState::kept) emit(actions, Action::Kind::drop_secondary_shard, unit);
}

void Scheduler::prefetch(std::vector<Action>& actions, ExecOrder::Phase phase, int unit) {
  const auto& listed = unit_at(unit).prefetch[static_cast<std::size_t>(phase)];
  const std::vector<int> due = order().upcoming(phase, listed ? std::numeric_limits<int>::max() : options_.prefetch);
  for (const int next : listed ? *listed : due) {
    if (options_.limit > 0 && in_flight() >= options_.limit) return;
    // A list may name a unit whose turn is over: nobody would use it.
    if (order().is_recorded() && std::find(due.begin(), due.end(), next) == due.end()) continue;
    const bool is_needed = phase == ExecOrder::Phase::forward || unit_at(next).unshards_in_backward;
    if (is_needed && unit_at(next).state == UnitState::sharded) gather(actions, next);
  }
}

void Scheduler::note_order(ExecOrder::Phase phase, int unit) {
  if (!order().advance(phase, unit)) {
    deviations_.push_back(
        fmt::format("{} in {}", unit_at(unit).name, phase == ExecOrder::Phase::forward ? "forward" : "backward"));
  }
}

void Scheduler::begin_micro_batch(Mode mode, bool is_last) {
  if (in_micro_batch_)
    throw UsageError("a micro-batch begins while another is already running", "end that one first, or abandon() it");
  if (mode == Mode::train && is_last) check_all_reduces();
  in_micro_batch_ = true;
  mode_ = mode;
  is_last_ = is_last;
  is_due_ = reduces_;
  for (Unit& unit : units_) {
    unit.in_forward = unit.in_backward = unit.has_run = unit.is_reduced = unit.is_added_to = false;
    unit.had_gradient = accumulates(unit.grad);
  }
  order().begin();
}

/// The optimizer would take sums of which the replicas' part is missing.
void Scheduler::check_all_reduces() const {
  for (const Unit& unit : units_) {
    if (unit.all_reduces || unit.schedule.final_step == UnitSchedule::Final::none) continue;
    throw UsageError(fmt::format("unit {} is without its all-reduce in the step's last micro-batch", unit.name),
                     "call set_requires_all_reduce(true) before it begins");
  }
}

std::vector<Action> Scheduler::before_forward(int unit) {
  if (!in_micro_batch_) refuse(unit_at(unit), "run forward outside a micro-batch", kBegin);
  if (unit_at(unit).in_forward)
    refuse(unit_at(unit), "run forward inside its own forward", "let its ForwardScope end first");
  std::vector<Action> actions;
  note_order(ExecOrder::Phase::forward, unit);
  unit_at(unit).in_forward = unit_at(unit).has_run = true;
  unshard(actions, unit);
  prefetch(actions, ExecOrder::Phase::forward, unit);
  return actions;
}

/// The root, and the last (or the first) other unit of the recorded forward.
bool Scheduler::is_recorded_end(int unit, bool is_last) const {
  if (!options_.keep_root_unsharded) return false;
  if (unit == kRoot) return true;
  if (!order(mode_).is_recorded()) return false;
  const auto& forward = order(mode_).units(ExecOrder::Phase::forward);
  const auto is_other = [](int u) { return u != kRoot; };
  if (is_last) {
    const auto last = std::find_if(forward.rbegin(), forward.rend(), is_other);
    return last != forward.rend() && *last == unit;
  }
  const auto first = std::find_if(forward.begin(), forward.end(), is_other);
  return first != forward.end() && *first == unit;
}

bool Scheduler::stays_after_forward(int unit) const {
  const Unit& target = unit_at(unit);
  if (mode_ == Mode::eval) return target.schedule.keep_unsharded && !is_last_;
  if (target.after_forward) return target.after_forward == AfterForward::stay;
  return !target.schedule.reshard_after_forward || target.schedule.keep_unsharded || is_recorded_end(unit, true);
}

/// True if the unit keeps, for its backward, a secondary shard of what it is about to free.
bool Scheduler::keeps_secondary_shard(int unit) const {
  if (mode_ == Mode::eval || unit_at(unit).shard == ShardState::kept || !unit_at(unit).unshards_in_backward)
    return false;
  return unit_at(unit).after_forward ? unit_at(unit).after_forward == AfterForward::keep_secondary_shard
                                     : unit_at(unit).schedule.kept == UnitSchedule::Kept::of_forward;
}

bool Scheduler::stays_after_backward(int unit) const {
  if (is_last_) return false;
  if (mode_ == Mode::train && unit_at(unit).reshards_after_backward) return !*unit_at(unit).reshards_after_backward;
  return unit_at(unit).schedule.keep_unsharded || (mode_ == Mode::train && is_recorded_end(unit, false));
}

std::vector<Action> Scheduler::after_forward(int unit) {
  if (!unit_at(unit).in_forward)
    refuse(unit_at(unit), "end a forward that has not begun", "call before_forward() first");
  std::vector<Action> actions;
  unit_at(unit).in_forward = false;
  // An op that computes gradients in forward has begun the unit's backward, which goes on with the same parameters; so
  // does the next of several modules in one unit.
  if (stays_after_forward(unit) || unit_at(unit).in_backward || order().is_next(ExecOrder::Phase::forward, unit))
    return actions;
  if (keeps_secondary_shard(unit)) emit(actions, Action::Kind::keep_secondary_shard, unit);
  free_used(actions, unit);
  return actions;
}

std::vector<Action> Scheduler::before_recompute(int unit) {
  if (!in_micro_batch_ || mode_ != Mode::train) {
    refuse(unit_at(unit), "run forward again outside a training micro-batch", kBegin);
  }
  std::vector<Action> actions;
  unshard(actions, unit);
  return actions;
}

std::vector<Action> Scheduler::before_backward(int unit) {
  Unit& target = unit_at(unit);
  if (!in_micro_batch_ || mode_ != Mode::train) refuse(target, "run backward outside a training micro-batch", kBegin);
  if (target.is_reduced)
    refuse(target, "run backward again after its gradients were reduced", "add the losses, and call backward() once");
  std::vector<Action> actions;
  if (target.in_backward) return actions;
  reduce_delayed(actions);
  note_order(ExecOrder::Phase::backward, unit);
  target.in_backward = true;
  target.is_added_to = target.is_added_to || !target.is_frozen;
  if (target.unshards_in_backward) unshard(actions, unit);
  if (!options_.prefetch_after_backward) prefetch(actions, ExecOrder::Phase::backward, unit);
  // A unit still under reduction comes from an earlier micro-batch; older ones are released first.
  while (target.grad == GradState::reducing && !target.is_frozen) release_oldest(actions);
  resume(actions, unit);
  reload_ahead(actions);
  if (is_due(unit)) reload_sum(actions, unit);
  if (target.grad == GradState::accumulating || target.is_frozen) return actions;
  emit(actions, Action::Kind::begin_gradient, unit);
  return actions;
}

void Scheduler::reduce(std::vector<Action>& actions, int unit) {
  // Before the new reduction is enqueued, so that whoever takes the oldest buffer next waits for the oldest reduction,
  // not for this one.
  while (std::cmp_greater_equal(reducing_.size(), options_.max_reductions_in_flight)) release_oldest(actions);
  reload_sum(actions, unit);
  emit(actions, Action::Kind::reduce, unit);
  unit_at(unit).is_reduced = true;
  reducing_.push_back(unit);
  using Final = UnitSchedule::Final;
  const Final final_step = unit_at(unit).schedule.final_step;
  if (final_step == Final::none) unit_at(unit).sum = SumState::none;
  if ((final_step == Final::every && unit_at(unit).all_reduces) || (final_step == Final::last && is_last_))
    emit(actions, Action::Kind::finish, unit);
  park(actions, unit);
}

void Scheduler::reduce_delayed(std::vector<Action>& actions) {
  if (delayed_) reduce(actions, *std::exchange(delayed_, std::nullopt));
}

void Scheduler::release_oldest(std::vector<Action>& actions) {
  emit(actions, Action::Kind::release_gradient, reducing_.front());
  reducing_.pop_front();
}

std::vector<Action> Scheduler::after_backward(int unit) {
  Unit& target = unit_at(unit);
  if (!target.in_backward) refuse(target, "end a backward that has not begun", "call before_backward() first");
  std::vector<Action> actions;
  target.in_backward = false;
  if (!stays_after_backward(unit)) reshard(actions, unit);
  if (options_.prefetch_after_backward) prefetch(actions, ExecOrder::Phase::backward, unit);
  reduce_delayed(actions);
  if (!is_due(unit)) park(actions, unit);
  if (!is_due(unit) || target.grad != GradState::accumulating) return actions;
  if (options_.delays_reductions) {
    delayed_ = unit;
  } else {
    reduce(actions, unit);
  }
  return actions;
}

std::vector<Action> Scheduler::end_micro_batch() {
  if (!in_micro_batch_) throw UsageError("end_micro_batch(): no micro-batch is running", kBegin);
  for (const Unit& unit : units_) {
    if (unit.in_forward) refuse(unit, "end the micro-batch inside its forward", "let its ForwardScope end first");
  }
  std::vector<Action> actions;
  reduce_delayed(actions);
  for (int unit = 0; unit < size(); ++unit) {
    const Unit& target = unit_at(unit);
    if (target.state == UnitState::gathering) unused_gathers_.push_back(target.name);
    if (target.state == UnitState::gathering || !stays_after_backward(unit)) reshard(actions, unit);
    if (is_due(unit)) reduce_rest(actions, unit);
    if (mode_ == Mode::train) park(actions, unit);
    // Its gradients came in earlier micro-batches only.
    if (mode_ == Mode::train && is_last_ && target.schedule.final_step != UnitSchedule::Final::none &&
        target.sum != SumState::none) {
      reload_sum(actions, unit);
      emit(actions, Action::Kind::finish, unit);
    }
  }
  while (is_last_ && !deferred_.empty()) free_oldest_deferred(actions);
  if (mode_ == Mode::train && is_last_) {
    while (!reducing_.empty()) release_oldest(actions);
  }
  order().end();
  in_micro_batch_ = false;
  return actions;
}

/// Reduces a unit whose backward did not complete, or that had none.
void Scheduler::reduce_rest(std::vector<Action>& actions, int unit) {
  const Unit& target = unit_at(unit);
  resume(actions, unit);
  if (options_.reduces_unused && !target.is_reduced && !target.is_frozen && target.grad != GradState::accumulating) {
    while (target.grad == GradState::reducing) release_oldest(actions);
    emit(actions, Action::Kind::begin_gradient, unit);
  }
  if (target.grad == GradState::accumulating) reduce(actions, unit);
}

std::vector<Action> Scheduler::start_unshard(int unit) {
  std::vector<Action> actions;
  if (unit_at(unit).state == UnitState::sharded) gather(actions, unit);
  return actions;
}

std::vector<Action> Scheduler::wait_unshard(int unit) {
  std::vector<Action> actions;
  unshard(actions, unit);
  return actions;
}

std::vector<Action> Scheduler::reshard(int unit) {
  if (unit_at(unit).in_forward || unit_at(unit).in_backward) {
    refuse(unit_at(unit), "be resharded within its own forward or backward", "it is resharded behind them by itself");
  }
  std::vector<Action> actions;
  if (unit_at(unit).state != UnitState::sharded) emit(actions, Action::Kind::free_full, unit);
  if (!in_micro_batch_ && unit_at(unit).shard == ShardState::kept)
    emit(actions, Action::Kind::drop_secondary_shard, unit);
  return actions;
}

void Scheduler::set_prefetch(ExecOrder::Phase phase, int unit, std::vector<int> targets) {
  for (const int target : targets)
    if (target < 0 || target >= size())
      throw UsageError(fmt::format("set_prefetch() of unit {} of a model with {}", target, size()),
                       "units are counted from 0");
  unit_at(unit).prefetch[static_cast<std::size_t>(phase)] = std::move(targets);
  ++changes_;
}

std::vector<int> Scheduler::reduced() const {
  std::vector<int> reduced;
  for (int unit = 0; unit < size(); ++unit) {
    if (in_micro_batch_ && unit_at(unit).is_reduced) reduced.push_back(unit);
  }
  return reduced;
}

std::vector<Action> Scheduler::abandon(bool of_step) {
  std::vector<Action> actions;
  for (int unit = 0; unit < size(); ++unit) {
    Unit& target = unit_at(unit);
    const bool drops_gradient = of_step || (in_micro_batch_ && target.is_added_to);
    if (target.state != UnitState::sharded) emit(actions, Action::Kind::free_full, unit);
    if (target.shard == ShardState::kept) emit(actions, Action::Kind::drop_secondary_shard, unit);
    if (target.grad == GradState::reducing || (drops_gradient && accumulates(target.grad))) {
      emit(actions, Action::Kind::release_gradient, unit);
    }
    if (of_step || (in_micro_batch_ && target.is_reduced)) target.sum = SumState::none;
    target.in_forward = target.in_backward = target.is_reduced = target.is_added_to = false;
  }
  while (!deferred_.empty()) free_oldest_deferred(actions);
  reducing_.clear();
  delayed_.reset();
  in_micro_batch_ = is_last_ = false;
  for (int unit = 0; unit < size(); ++unit) park(actions, unit);
  return actions;
}

}  // namespace zs
