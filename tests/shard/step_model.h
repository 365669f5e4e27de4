#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/shard/schedule/scheduler.h"

namespace zs::test {

/// One call that a model's step makes on the scheduler.
struct Hook {
  enum class Kind : std::uint8_t { begin, before_forward, after_forward, before_backward, after_backward, end };
  Kind kind;
  int unit = 0;
  bool is_last = false;  // kind == begin
};

/// A transformer's micro-batch: the root's forward wraps the blocks; backward starts in the root (the head), takes the
/// blocks in reverse and ends in the root (the embedding, and with it the root's gradients).
inline std::vector<Hook> micro_batch_hooks(int units, Mode mode, bool is_last) {
  using Kind = Hook::Kind;
  std::vector<Hook> hooks{{Kind::begin, 0, is_last}, {Kind::before_forward, 0}};
  for (int unit = 1; unit < units; ++unit) {
    hooks.push_back({Kind::before_forward, unit});
    hooks.push_back({Kind::after_forward, unit});
  }
  hooks.push_back({Kind::after_forward, 0});
  if (mode == Mode::train) {
    hooks.push_back({Kind::before_backward, 0});
    for (int unit = units - 1; unit > 0; --unit) {
      hooks.push_back({Kind::before_backward, unit});
      hooks.push_back(
          {Kind::before_backward, unit});  // every op of the unit asks; the later ones are answered with nothing
      hooks.push_back({Kind::after_backward, unit});
    }
    hooks.push_back({Kind::before_backward, 0});
    hooks.push_back({Kind::after_backward, 0});
  }
  hooks.push_back({Kind::end});
  return hooks;
}

inline std::vector<Hook> step_hooks(int units, Mode mode, int micro_batches) {
  std::vector<Hook> hooks;
  for (int i = 0; i < micro_batches; ++i) {
    const auto one = micro_batch_hooks(units, mode, i + 1 == micro_batches);
    hooks.insert(hooks.end(), one.begin(), one.end());
  }
  return hooks;
}

inline std::vector<Action> call(Scheduler& scheduler, const Hook& hook, Mode mode) {
  switch (hook.kind) {
    case Hook::Kind::begin: scheduler.begin_micro_batch(mode, hook.is_last); return {};
    case Hook::Kind::before_forward: return scheduler.before_forward(hook.unit);
    case Hook::Kind::after_forward: return scheduler.after_forward(hook.unit);
    case Hook::Kind::before_backward: return scheduler.before_backward(hook.unit);
    case Hook::Kind::after_backward: return scheduler.after_backward(hook.unit);
    case Hook::Kind::end: return scheduler.end_micro_batch();
  }
  return {};
}

/// "gather 1, wait_gathered 1"
inline std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(action.kind), action.unit);
  return text;
}

inline std::vector<Action> run_hooks(Scheduler& scheduler, const std::vector<Hook>& hooks, Mode mode) {
  std::vector<Action> all;
  for (const Hook& hook : hooks) {
    const auto actions = call(scheduler, hook, mode);
    all.insert(all.end(), actions.begin(), actions.end());
  }
  return all;
}

inline std::vector<std::string> unit_names(int units) {
  std::vector<std::string> names{"root"};
  for (int unit = 1; unit < units; ++unit) names.push_back(fmt::format("block{}", unit - 1));
  return names;
}

/// What memory and streams would look like after each action, kept apart from the scheduler's own states. Every broken
/// rule becomes one line in `faults`.
class ActionChecker {
 public:
  explicit ActionChecker(int units) : units_(static_cast<std::size_t>(units)) {}

  void apply(const std::vector<Action>& actions) {
    for (const Action& action : actions) apply(action);
  }

  /// Compute reads the unit's parameters now.
  void use(int unit) { expect(at(unit).full == Full::waited, "is used without having been waited for", unit); }
  /// Compute adds to the unit's gradient now.
  void fill(int unit) { expect(at(unit).grad == Grad::filling, "has no gradient buffer to add to", unit); }

  void start_micro_batch() {
    for (Unit& unit : units_) unit.reduces = unit.gathers = unit.small_gathers = unit.finishes = 0;
  }
  int reduces(int unit) const { return units_[static_cast<std::size_t>(unit)].reduces; }
  int finishes(int unit) const { return units_[static_cast<std::size_t>(unit)].finishes; }
  /// Gathers from kept shards; the others are from the master shards.
  int small_gathers(int unit) const { return units_[static_cast<std::size_t>(unit)].small_gathers; }
  bool has_shard(int unit) const { return units_[static_cast<std::size_t>(unit)].has_shard; }
  bool has_sum(int unit) const { return units_[static_cast<std::size_t>(unit)].has_sum; }
  int gathers(int unit) const { return units_[static_cast<std::size_t>(unit)].gathers; }
  bool has_full(int unit) const { return units_[static_cast<std::size_t>(unit)].full != Full::none; }
  bool has_grad(int unit) const { return units_[static_cast<std::size_t>(unit)].grad != Grad::none; }
  /// Whether the device has a gradient that goes on accumulating, and whether it has a sum.
  bool has_filling(int unit) const { return units_[static_cast<std::size_t>(unit)].grad == Grad::filling; }
  bool has_sum_here(int unit) const { return has_sum(unit) && !units_[static_cast<std::size_t>(unit)].sum_is_parked; }
  /// Full buffers of units other than the root, and what is under reduction or being filled: now, and the most so far.
  int blocks_full() const {
    return count([](const Unit& unit) { return unit.full != Full::none; }, 1);
  }
  /// Buffers that were set aside and have not gone back.
  int aside() const { return static_cast<int>(deferred_.size()); }
  int reducing() const {
    return count([](const Unit& unit) { return unit.grad == Grad::reducing; }, 0);
  }
  int blocks_filling() const {
    return count([](const Unit& unit) { return unit.grad == Grad::filling; }, 1);
  }
  int most_blocks_full() const { return most_blocks_full_; }
  /// Of blocks: full buffers, and those that were set aside.
  int most_blocks_held() const { return most_blocks_held_; }
  int most_reducing() const { return most_reducing_; }
  int most_blocks_filling() const { return most_blocks_filling_; }

  const std::vector<std::string>& faults() const { return faults_; }

 private:
  enum class Full : std::uint8_t { none, in_flight, waited };
  enum class Grad : std::uint8_t { none, filling, reducing, parked, reloading };
  struct Unit {
    Full full = Full::none;
    Grad grad = Grad::none;
    bool has_shard = false, has_sum = false, sum_is_parked = false;
    int reduces = 0, finishes = 0, gathers = 0, small_gathers = 0;
  };

  Unit& at(int unit) { return units_.at(static_cast<std::size_t>(unit)); }
  void expect(bool holds, const char* what, int unit) {
    if (!holds) faults_.push_back(fmt::format("unit {} {}", unit, what));
  }
  template <class Predicate>
  int count(Predicate predicate, std::size_t first) const {
    return static_cast<int>(
        std::count_if(units_.begin() + static_cast<std::ptrdiff_t>(first), units_.end(), predicate));
  }

  void apply(const Action& action) {
    Unit& unit = at(action.unit);
    switch (action.kind) {
      case Action::Kind::gather:
      case Action::Kind::two_level_gather:
      case Action::Kind::gather_secondary: gather(unit, action); break;
      case Action::Kind::keep_secondary_shard:
        expect(unit.full == Full::waited && !unit.has_shard, "keeps a shard of nothing, or a second one", action.unit);
        unit.has_shard = true;
        break;
      case Action::Kind::drop_secondary_shard:
        expect(unit.has_shard, "drops a shard that it does not have", action.unit);
        unit.has_shard = false;
        break;
      case Action::Kind::finish:
        expect(unit.has_sum && !unit.sum_is_parked, "finishes a reduction that has not begun", action.unit);
        unit.has_sum = false;
        ++unit.finishes;
        break;
      case Action::Kind::wait_gathered:
        expect(unit.full == Full::in_flight, "is waited for without a gather in flight", action.unit);
        unit.full = Full::waited;
        break;
      case Action::Kind::free_full:
        expect(unit.full != Full::none, "is freed without a full buffer", action.unit);
        unit.full = Full::none;
        break;
      case Action::Kind::defer_free:
        expect(unit.full == Full::waited, "is set aside without being unsharded", action.unit);
        unit.full = Full::none;
        deferred_.push_back(action.unit);
        break;
      case Action::Kind::free_deferred:
        expect(!deferred_.empty() && deferred_.front() == action.unit, "gives back what is not the oldest buffer aside",
               action.unit);
        if (!deferred_.empty()) deferred_.erase(deferred_.begin());
        break;
      case Action::Kind::begin_gradient:
        expect(unit.grad == Grad::none, "begins a gradient while it has one", action.unit);
        unit.grad = Grad::filling;
        break;
      case Action::Kind::reduce:
        expect(unit.grad == Grad::filling && !unit.sum_is_parked, "reduces what was not being filled", action.unit);
        unit.grad = Grad::reducing;
        unit.has_sum = true;
        ++unit.reduces;
        break;
      case Action::Kind::park_gradient:
        expect(unit.grad == Grad::filling || unit.grad == Grad::reloading, "parks no gradient", action.unit);
        unit.grad = Grad::parked;
        break;
      case Action::Kind::reload_gradient:
        expect(unit.grad == Grad::parked, "reloads a gradient that is not parked", action.unit);
        unit.grad = Grad::reloading;
        break;
      case Action::Kind::resume_gradient:
        expect(unit.grad == Grad::reloading, "resumes a gradient that was not reloaded", action.unit);
        unit.grad = Grad::filling;
        break;
      case Action::Kind::park_sum:
        expect(unit.has_sum && !unit.sum_is_parked, "parks no sum", action.unit);
        unit.sum_is_parked = true;
        break;
      case Action::Kind::reload_sum:
        expect(unit.has_sum && unit.sum_is_parked, "reloads a sum that is not parked", action.unit);
        unit.sum_is_parked = false;
        break;
      case Action::Kind::release_gradient:
        expect(unit.grad != Grad::none, "releases a gradient that it does not have", action.unit);
        unit.grad = Grad::none;
        break;
    }
    most_blocks_full_ = std::max(most_blocks_full_, blocks_full());
    most_blocks_held_ = std::max(most_blocks_held_, blocks_full() + aside());
    most_reducing_ = std::max(most_reducing_, reducing());
    most_blocks_filling_ = std::max(most_blocks_filling_, blocks_filling());
  }

  void gather(Unit& unit, const Action& action) {
    const bool is_small = action.kind == Action::Kind::gather_secondary;
    expect(unit.full == Full::none, "is gathered while it has a full buffer", action.unit);
    expect(is_small == unit.has_shard, "is not gathered from the shard at hand, or from none", action.unit);
    unit.full = Full::in_flight;
    ++(is_small ? unit.small_gathers : unit.gathers);
    if (action.kind == Action::Kind::two_level_gather) unit.has_shard = true;
  }

  std::vector<Unit> units_;
  std::vector<int> deferred_;  // units whose buffers wait, oldest first
  int most_blocks_full_ = 0, most_blocks_held_ = 0, most_reducing_ = 0, most_blocks_filling_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace zs::test
