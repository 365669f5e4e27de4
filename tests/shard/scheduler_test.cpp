#include "runtime/shard/schedule/scheduler.h"

#include <catch2/catch.hpp>

#include "runtime/base/check.h"
#include "tests/shard/scheduler_plans.h"

namespace zs::scheduler_test {

using test::ActionChecker, test::Final, test::for_each_plan, test::Hook, test::is_kept_for_backward,
    test::is_kept_for_next, test::Kept, test::Kind, test::Plan, test::run_plan, test::run_step, test::script;
using Phase = ExecOrder::Phase;

TEST_CASE("no unit is used before its gather was waited for, whatever the plan") {
  for_each_plan([](const Plan& plan) { run_plan(plan, [](const Hook&, bool, const ActionChecker&) {}); });
}

TEST_CASE("after a micro-batch only what the next one needs is unsharded, and after every step nothing is left") {
  for_each_plan([](const Plan& plan) {
    int micro_batch = 0;
    run_plan(plan, [&](const Hook& hook, bool is_replay, const ActionChecker& checker) {
      if (hook.kind != Kind::end) return;
      const bool is_last = ++micro_batch % plan.micro_batches == 0;
      for (int unit = 0; unit < plan.units; ++unit) {
        const bool is_known = unit == 0 || is_replay || plan.options.keep_unsharded;  // as an end of the order
        REQUIRE(checker.has_full(unit) == (!is_last && is_known && is_kept_for_next(plan, unit)));
        REQUIRE(checker.has_shard(unit) == (!is_last && plan.options.kept == Kept::of_gather));
      }
    });
    Scheduler scheduler = test::scheduler_of(plan.units, plan.options);
    ActionChecker checker(plan.units);
    run_step(plan, scheduler, checker, [](const Hook&, bool) {});
    for (int unit = 0; unit < plan.units; ++unit) {
      REQUIRE_FALSE(checker.has_grad(unit));
      REQUIRE(scheduler.state(unit) == UnitState::sharded);
      REQUIRE(scheduler.shard_state(unit) == ShardState::none);
      REQUIRE(scheduler.grad_state(unit) == GradState::none);
      REQUIRE(scheduler.sum_state(unit) == SumState::none);
    }
  });
}

TEST_CASE("0-19: what accumulates is on the device between micro-batches of the ends of the order alone") {
  for_each_plan([](Plan plan) {
    if (plan.mode == Mode::eval) return;
    plan.parks = true;
    int micro_batch = 0;
    run_plan(plan, [&](const Hook& hook, bool is_replay, const ActionChecker& checker) {
      if (hook.kind != Kind::end) return;
      const bool is_last = ++micro_batch % plan.micro_batches == 0;
      const bool has_sums = plan.options.final_step == Final::last && plan.options.reduce_every_micro_batch;
      for (int unit = 0; unit < plan.units; ++unit) {
        const bool stays = !is_replay || unit == 0 || unit == plan.units - 1;
        REQUIRE(checker.has_filling(unit) == (!is_last && stays && !plan.options.reduce_every_micro_batch));
        if (plan.options.final_step == Final::last)
          REQUIRE(checker.has_sum_here(unit) == (!is_last && stays && has_sums));
      }
    });
  });
}

TEST_CASE("0-19: a gradient comes back beside the backward of the unit before, as it was, and once") {
  Scheduler scheduler = test::scheduler_of(5, {{}, {.reduce_every_micro_batch = false}});
  for (int unit = 0; unit < 5; ++unit) scheduler.set_parks(unit, true, true);
  const std::vector<Hook> hooks = test::step_hooks(5, Mode::train, 2);
  test::run_hooks(scheduler, hooks, Mode::train);
  std::vector<std::string> found;
  for (const Hook& hook : hooks)
    for (const Action& action : test::call(scheduler, hook, Mode::train)) {
      const std::string name = name_of(action.kind);
      const bool is_begin = hook.kind == Kind::before_backward;
      if (name == "park_gradient" || name == "reload_gradient" || name == "resume_gradient" || name == "begin_gradient")
        found.push_back(fmt::format("{} {} {} {}", is_begin ? "before" : "after", hook.unit, name, action.unit));
    }
  CHECK(found == std::vector<std::string>{
                     "before 0 begin_gradient 0", "before 4 begin_gradient 4", "before 3 begin_gradient 3",
                     "after 3 park_gradient 3", "before 2 begin_gradient 2", "after 2 park_gradient 2",
                     "before 1 begin_gradient 1", "after 1 park_gradient 1", "before 4 reload_gradient 3",
                     "before 3 resume_gradient 3", "before 3 reload_gradient 2", "before 2 resume_gradient 2",
                     "before 2 reload_gradient 1", "before 1 resume_gradient 1"});
}

TEST_CASE("0-19: what came back for a micro-batch that is abandoned goes to the host again, unless it is dropped") {
  Scheduler scheduler = test::scheduler_of(5, {{}, {.reduce_every_micro_batch = false}});
  for (int unit = 0; unit < 5; ++unit) scheduler.set_parks(unit, true, false);
  for (int i = 0; i < 2; ++i) test::run_hooks(scheduler, test::step_hooks(5, Mode::train, 2), Mode::train);
  const bool of_step = GENERATE(false, true);
  scheduler.begin_micro_batch(Mode::train, false);
  for (int unit = 0; unit < 5; ++unit) scheduler.before_forward(unit);
  for (int unit = 4; unit >= 0; --unit) scheduler.after_forward(unit);
  for (const int unit : {0, 4}) scheduler.before_backward(unit);
  scheduler.after_backward(4);
  scheduler.before_backward(3);
  scheduler.after_backward(3);
  scheduler.end_micro_batch();
  scheduler.begin_micro_batch(Mode::train, true);
  scheduler.before_forward(0);
  scheduler.before_backward(4);
  CHECK(scheduler.grad_state(3) == GradState::reloading);
  scheduler.abandon(of_step);
  for (const int unit : {1, 2}) CHECK(scheduler.grad_state(unit) == GradState::none);
  CHECK(scheduler.grad_state(3) == (of_step ? GradState::none : GradState::parked));
}

TEST_CASE(
    "I3: each unit is reduced exactly once per micro-batch, or once per step, and its reduction finished as often as "
    "asked") {
  for_each_plan([](const Plan& plan) {
    int micro_batch = 0;
    run_plan(plan, [&](const Hook& hook, bool, const ActionChecker& checker) {
      if (hook.kind != Kind::end) return;
      const bool is_last = ++micro_batch % plan.micro_batches == 0;
      const bool is_due = plan.mode == Mode::train && (plan.options.reduce_every_micro_batch || is_last);
      const Final final_step = plan.options.final_step;
      const bool is_finished = is_due && (final_step == Final::every || (final_step == Final::last && is_last));
      for (int unit = 0; unit < plan.units; ++unit) {
        REQUIRE(checker.reduces(unit) == (is_due ? 1 : 0));
        REQUIRE(checker.finishes(unit) == (is_finished ? 1 : 0));
      }
    });
  });
}

TEST_CASE("in a replay the next units of the order are gathered ahead, forward and backward") {
  for_each_plan([](const Plan& plan) {
    run_plan(plan, [&](const Hook& hook, bool is_replay, const ActionChecker& checker) {
      if (!is_replay || hook.unit == 0) return;
      if (hook.kind == Kind::before_forward) {
        for (int next = hook.unit + 1; next < std::min(plan.units, hook.unit + 1 + plan.options.prefetch); ++next) {
          REQUIRE(checker.has_full(next));
        }
      }
      if (hook.kind == Kind::before_backward) {
        for (int next = hook.unit - 1; next > std::max(0, hook.unit - 1 - plan.options.prefetch); --next)
          REQUIRE(checker.has_full(next));
      }
    });
  });
}

TEST_CASE("a replay gathers no unit more often than its policy needs") {
  for_each_plan([](const Plan& plan) {
    int micro_batch = -1;
    run_plan(plan, [&](const Hook& hook, bool, const ActionChecker& checker) {
      if (hook.kind != Kind::end || ++micro_batch < plan.micro_batches) return;
      const bool is_first = micro_batch % plan.micro_batches == 0;
      for (int unit = 0; unit < plan.units; ++unit) {
        const int forward = is_first || !is_kept_for_next(plan, unit) ? 1 : 0;
        const int backward = plan.mode == Mode::eval || is_kept_for_backward(plan, unit) ? 0 : 1;
        const int from_masters = plan.options.kept == Kept::of_gather    ? (is_first ? forward : 0)
                                 : plan.options.kept == Kept::of_forward ? forward
                                                                         : forward + backward;
        REQUIRE(checker.gathers(unit) == from_masters);
        REQUIRE(checker.small_gathers(unit) == forward + backward - from_masters);
      }
    });
  });
}

TEST_CASE("a unit whose backward begins within its forward stays unsharded for it, also where the ends are not kept") {
  Scheduler scheduler(test::unit_names(2), {.prefetch = 0, .keep_root_unsharded = false});
  ActionChecker checker(2);
  scheduler.begin_micro_batch(Mode::train, true);
  checker.apply(scheduler.before_forward(0));
  checker.apply(scheduler.before_forward(1));
  checker.apply(scheduler.after_forward(1));
  checker.apply(scheduler.before_backward(0));
  checker.apply(scheduler.after_forward(0));
  checker.apply(scheduler.before_backward(0));
  checker.use(0);
  CHECK_FALSE(checker.has_full(1));
  checker.apply(scheduler.before_backward(1));
  checker.apply(scheduler.after_backward(1));
  checker.apply(scheduler.after_backward(0));
  checker.apply(scheduler.end_micro_batch());
  CHECK(checker.faults().empty());
  CHECK(checker.gathers(0) == 1);
}

TEST_CASE("a shard kept of the first gather serves the rest of the step; one kept of a forward serves its backward") {
  const auto hooks = test::step_hooks(2, Mode::train, 2);
  Scheduler nested(test::unit_names(2), {.prefetch = 0, .keep_root_unsharded = false},
                   {.kept = Kept::of_gather, .final_step = Final::last});
  const std::vector<std::string> of_gather = {
      "two_level_gather 0, wait_gathered 0",
      "two_level_gather 1, wait_gathered 1",
      "free_full 1",
      "free_full 0",
      "gather_secondary 0, wait_gathered 0, begin_gradient 0",
      "gather_secondary 1, wait_gathered 1, begin_gradient 1",
      "free_full 1, reduce 1",
      "free_full 0, reduce 0",
      "gather_secondary 0, wait_gathered 0",
      "gather_secondary 1, wait_gathered 1",
      "free_full 1",
      "free_full 0",
      "gather_secondary 0, wait_gathered 0, release_gradient 1, release_gradient 0, begin_gradient 0",
      "gather_secondary 1, wait_gathered 1, begin_gradient 1",
      "free_full 1, drop_secondary_shard 1, reduce 1, finish 1",
      "free_full 0, drop_secondary_shard 0, reduce 0, finish 0",
      "release_gradient 1, release_gradient 0",
  };
  CHECK(script(nested, hooks, Mode::train) == of_gather);
  CHECK(script(nested, hooks, Mode::train) == of_gather);

  Scheduler between(test::unit_names(2), {.prefetch = 0}, {.kept = Kept::of_forward});
  const std::vector<std::string> of_forward = {
      "gather 0, wait_gathered 0",
      "gather 1, wait_gathered 1",
      "keep_secondary_shard 1, free_full 1",
      "begin_gradient 0",
      "gather_secondary 1, drop_secondary_shard 1, wait_gathered 1, begin_gradient 1",
      "free_full 1, reduce 1",
      "free_full 0, reduce 0",
      "release_gradient 1, release_gradient 0",
  };
  CHECK(script(between, test::step_hooks(2, Mode::train, 1), Mode::train) == of_forward);
}

TEST_CASE("a unit whose gradients came in earlier micro-batches only has its reduction finished in the last") {
  Scheduler scheduler(test::unit_names(2), {.prefetch = 0}, {.final_step = Final::last});
  ActionChecker checker(2);
  for (const auto& hook : test::micro_batch_hooks(2, Mode::train, false))
    checker.apply(test::call(scheduler, hook, Mode::train));
  CHECK(scheduler.sum_state(1) == SumState::partial);
  for (const auto& hook : test::micro_batch_hooks(1, Mode::train, true))
    checker.apply(test::call(scheduler, hook, Mode::train));
  CHECK(checker.finishes(1) == 1);
  CHECK(checker.finishes(0) == 1);
  CHECK(checker.faults().empty());
  CHECK(scheduler.sum_state(1) == SumState::none);
}

TEST_CASE("training and validation keep their own orders") {
  Scheduler scheduler(test::unit_names(3), {});
  test::run_hooks(scheduler, test::step_hooks(3, Mode::train, 1), Mode::train);
  CHECK_FALSE(scheduler.order(Mode::eval).is_recorded());
  test::run_hooks(scheduler, test::step_hooks(3, Mode::eval, 1), Mode::eval);
  CHECK(scheduler.order(Mode::eval).units(Phase::forward) == std::vector<int>{0, 1, 2});
  CHECK(scheduler.order(Mode::eval).units(Phase::backward).empty());
  CHECK(scheduler.order(Mode::train).units(Phase::backward) == std::vector<int>{0, 2, 1});
  CHECK(scheduler.take_deviations().empty());
}

TEST_CASE("a forward that runs again in its unit's backward asks for nothing, whatever the plan") {
  for_each_plan([](const Plan& plan) {
    if (plan.mode == Mode::eval) return;
    Scheduler scheduler = test::scheduler_of(plan.units, plan.options);
    ActionChecker checker(plan.units);
    for (int step = 0; step < 2; ++step) {
      run_step(plan, scheduler, checker, [&](const Hook& hook, bool) {
        if (hook.kind == Kind::before_backward) REQUIRE(scheduler.before_recompute(hook.unit).empty());
      });
    }
    REQUIRE(checker.faults().empty());
  });
}

TEST_CASE("a forward that runs again before its unit's backward unshards it until then, and is no part of the order") {
  const int prefetch = GENERATE(0, 1, 2);
  Scheduler scheduler(test::unit_names(4), {.prefetch = prefetch});
  ActionChecker checker(4);
  const auto run = [&](bool again) {
    checker.start_micro_batch();
    for (const Hook& hook : test::step_hooks(4, Mode::train, 1)) {
      checker.apply(test::call(scheduler, hook, Mode::train));
      if (!again || hook.kind != Kind::after_forward || hook.unit != 0) continue;
      for (int unit = 1; unit < 4; ++unit) {
        checker.apply(scheduler.before_recompute(unit));
        checker.use(unit);
      }
    }
    for (int unit = 0; unit < 4; ++unit) {
      CHECK_FALSE(checker.has_full(unit));
      CHECK(checker.gathers(unit) <= 2);
      CHECK(checker.reduces(unit) == 1);
    }
  };
  run(true);
  const ExecOrder recorded = scheduler.order(Mode::train);
  CHECK(recorded.units(Phase::forward) == std::vector<int>{0, 1, 2, 3});
  CHECK(recorded.units(Phase::backward) == std::vector<int>{0, 3, 2, 1});
  run(true);
  run(false);
  CHECK(checker.faults().empty());
  CHECK(scheduler.take_deviations().empty());
}

TEST_CASE("an order recorded elsewhere is replayed from the first micro-batch") {
  Scheduler recording(test::unit_names(4), {}), replaying(test::unit_names(4), {});
  const auto hooks = test::step_hooks(4, Mode::train, 1);
  test::run_hooks(recording, hooks, Mode::train);
  replaying.set_order(Mode::train, recording.order(Mode::train));
  CHECK(test::run_hooks(replaying, hooks, Mode::train) == test::run_hooks(recording, hooks, Mode::train));
}

TEST_CASE("three units without prefetch ask for exactly these actions") {
  Scheduler scheduler(test::unit_names(3), {.prefetch = 0, .max_reductions_in_flight = 1});
  const auto hooks = test::step_hooks(3, Mode::train, 1);
  const std::vector<std::string> recording = {
      "gather 0, wait_gathered 0",
      "gather 1, wait_gathered 1",
      "free_full 1",
      "gather 2, wait_gathered 2",
      "free_full 2",
      "begin_gradient 0",
      "gather 2, wait_gathered 2, begin_gradient 2",
      "free_full 2, reduce 2",
      "gather 1, wait_gathered 1, begin_gradient 1",
      "free_full 1, release_gradient 2, reduce 1",
      "free_full 0, release_gradient 1, reduce 0",
      "release_gradient 0",
  };
  CHECK(script(scheduler, hooks, Mode::train) == recording);
  std::vector<std::string> replay = recording;
  replay[6] = "begin_gradient 2";    // the last block stayed unsharded,
  replay.erase(replay.begin() + 4);  // for it was not freed
  CHECK(script(scheduler, hooks, Mode::train) == replay);
}

TEST_CASE("three units with prefetch 1 ask for exactly these actions") {
  Scheduler scheduler(test::unit_names(3), {.prefetch = 1, .max_reductions_in_flight = 2});
  const auto hooks = test::step_hooks(3, Mode::train, 1);
  test::run_hooks(scheduler, hooks, Mode::train);
  const std::vector<std::string> replay = {
      "gather 0, wait_gathered 0, gather 1",
      "wait_gathered 1, gather 2",
      "free_full 1",
      "wait_gathered 2",
      "begin_gradient 0",
      "gather 1, begin_gradient 2",
      "free_full 2, reduce 2",
      "wait_gathered 1, begin_gradient 1",
      "free_full 1, reduce 1",
      "free_full 0, release_gradient 2, reduce 0",
      "release_gradient 1, release_gradient 0",
  };
  CHECK(script(scheduler, hooks, Mode::train) == replay);
  CHECK(script(scheduler, hooks, Mode::train) == replay);
}

TEST_CASE("validation with prefetch 1 asks for exactly these actions") {
  Scheduler scheduler(test::unit_names(3), {.prefetch = 1});
  const auto hooks = test::step_hooks(3, Mode::eval, 1);
  test::run_hooks(scheduler, hooks, Mode::eval);
  const std::vector<std::string> replay = {
      "gather 0, wait_gathered 0, gather 1",
      "wait_gathered 1, gather 2",
      "free_full 1",
      "wait_gathered 2",
      "free_full 2",
      "free_full 0",
  };
  CHECK(script(scheduler, hooks, Mode::eval) == replay);
}

}  // namespace zs::scheduler_test
