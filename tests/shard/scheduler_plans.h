#pragma once

#include <catch2/catch.hpp>

#include "tests/shard/step_model.h"

namespace zs::test {

using Kind = Hook::Kind;

struct Policy : PrefetchOptions, UnitSchedule {};

struct Plan {
  int units = 3, micro_batches = 1;
  Policy options;
  Mode mode = Mode::train;
  bool parks = false;
};

using Kept = UnitSchedule::Kept;
using Final = UnitSchedule::Final;

inline std::string text_of(const Plan& plan) {
  return fmt::format(
      "units {} micro-batches {} reshard {} prefetch {} reduce_every {} in flight {} ends {} resident {} kept {} final "
      "{} {}",
      plan.units, plan.micro_batches, plan.options.reshard_after_forward, plan.options.prefetch,
      plan.options.reduce_every_micro_batch, plan.options.max_reductions_in_flight, plan.options.keep_root_unsharded,
      plan.options.keep_unsharded, static_cast<int>(plan.options.kept), static_cast<int>(plan.options.final_step),
      plan.mode == Mode::train ? "train" : "eval");
}

/// What sets the schemes apart for the scheduler.
inline std::vector<Policy> policies() {
  const PrefetchOptions frees_root{.keep_root_unsharded = false};
  return {{},
          {frees_root, {}},
          {{}, {.keep_unsharded = true}},
          {{}, {.kept = Kept::of_gather, .final_step = Final::last}},
          {frees_root, {.kept = Kept::of_gather, .final_step = Final::last}},
          {{}, {.kept = Kept::of_forward}},
          {frees_root, {.kept = Kept::of_forward}},
          {{}, {.final_step = Final::every}}};
}

inline Scheduler scheduler_of(int units, const Policy& options) { return {unit_names(units), options, options}; }

template <class Body>
void for_each_plan(const Body& body) {
  for (Policy options : policies()) {
    for (int bits = 0; bits < 8; ++bits) {
      options.reshard_after_forward = (bits & 1) != 0;
      options.reduce_every_micro_batch = (bits & 2) != 0;
      for (const int units : {1, 2, 3, 5}) {
        for (options.prefetch = 0; options.prefetch <= 3; ++options.prefetch) {
          for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
            options.max_reductions_in_flight = 1 + (units + options.prefetch + micro_batches) % 3;
            body(Plan{units, micro_batches, options, (bits & 4) != 0 ? Mode::eval : Mode::train});
          }
        }
      }
    }
  }
}

/// A unit that the ends of the order keep unsharded: from forward to backward, or from one micro-batch to the next.
inline bool is_kept_for_backward(const Plan& plan, int unit) {
  if (plan.mode == Mode::eval) return false;
  const bool is_end = plan.options.keep_root_unsharded && (unit == 0 || unit == plan.units - 1);
  return is_end || plan.options.keep_unsharded || !plan.options.reshard_after_forward;
}
inline bool is_kept_for_next(const Plan& plan, int unit) {
  return plan.options.keep_unsharded || (plan.mode == Mode::train && plan.options.keep_root_unsharded && unit <= 1);
}

/// A step of the model, with `watch(hook, checker, is_replay)` after every hook.
template <class Watch>
void run_step(const Plan& plan, Scheduler& scheduler, ActionChecker& checker, const Watch& watch) {
  for (const Hook& hook : step_hooks(plan.units, plan.mode, plan.micro_batches)) {
    if (hook.kind == Kind::begin) checker.start_micro_batch();
    const bool is_replay = scheduler.order(plan.mode).is_recorded();
    if (hook.kind == Kind::after_forward) checker.use(hook.unit);
    if (hook.kind == Kind::after_backward) checker.fill(hook.unit);
    checker.apply(call(scheduler, hook, plan.mode));
    if (hook.kind == Kind::before_forward || hook.kind == Kind::before_backward) checker.use(hook.unit);
    if (hook.kind == Kind::before_backward) checker.fill(hook.unit);
    watch(hook, is_replay);
  }
}

/// Three steps of one plan, checked hook by hook; the first is the recording.
template <class Watch>
void run_plan(const Plan& plan, const Watch& watch) {
  Scheduler scheduler = scheduler_of(plan.units, plan.options);
  for (int unit = 0; unit < plan.units; ++unit) scheduler.set_parks(unit, plan.parks, true);
  ActionChecker checker(plan.units);
  for (int step = 0; step < 3; ++step) {
    run_step(plan, scheduler, checker, [&](const Hook& hook, bool is_replay) { watch(hook, is_replay, checker); });
  }
  CHECK(scheduler.take_deviations().empty());
  if (checker.faults().empty()) return;
  FAIL_CHECK(text_of(plan) << ": " << checker.faults().front());
}

/// The actions of each hook that asked for any.
inline std::vector<std::string> script(Scheduler& scheduler, const std::vector<Hook>& hooks, Mode mode) {
  std::vector<std::string> lines;
  for (const Hook& hook : hooks) {
    const auto actions = call(scheduler, hook, mode);
    if (!actions.empty()) lines.push_back(text_of(actions));
  }
  return lines;
}

/// root, block0, block1, block2, with their order recorded.
inline Scheduler recorded_scheduler(const PrefetchOptions& options = {}) {
  Scheduler scheduler(unit_names(4), options);
  run_hooks(scheduler, step_hooks(4, Mode::train, 1), Mode::train);
  return scheduler;
}

inline void check_clean_end(const Scheduler& scheduler, const ActionChecker& checker) {
  CHECK(checker.faults() == std::vector<std::string>{});
  CHECK(checker.aside() == 0);
  for (int unit = 0; unit < scheduler.size(); ++unit) {
    CHECK_FALSE(checker.has_full(unit));
    CHECK_FALSE(checker.has_grad(unit));
    CHECK(scheduler.state(unit) == UnitState::sharded);
  }
}

}  // namespace zs::test
