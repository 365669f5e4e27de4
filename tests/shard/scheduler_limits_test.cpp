#include <catch2/catch.hpp>

#include "runtime/base/check.h"
#include "tests/shard/scheduler_plans.h"

namespace zs::scheduler_limits_test {

using test::ActionChecker, test::for_each_plan, test::Hook, test::Kind, test::Plan, test::policies, test::run_plan,
    test::run_step, test::script;
using Phase = ExecOrder::Phase;

TEST_CASE("full buffers alive are the root's, the running unit's and the prefetched ones, never more") {
  for_each_plan([](const Plan& plan) {
    const int blocks = plan.units - 1;
    const bool reshards =
        !plan.options.keep_unsharded && (plan.options.reshard_after_forward || plan.mode == Mode::eval);
    run_plan(plan, [&](const Hook&, bool is_replay, const ActionChecker& checker) {
      const int ahead = is_replay ? plan.options.prefetch : 0;
      REQUIRE(checker.blocks_full() <= (reshards ? std::min(blocks, 1 + ahead) : blocks));
    });
  });
}

TEST_CASE(
    "a limit holds whatever the prefetch, beside the ends that stay, and is used in full where the prefetch leaves "
    "room") {
  constexpr int kBlocks = 6;
  for (test::Policy options : policies()) {
    if (options.keep_unsharded) continue;
    for (options.prefetch = 0; options.prefetch <= 3; ++options.prefetch) {
      for (options.limit = 1; options.limit <= 5; ++options.limit) {
        for (const Mode mode : {Mode::train, Mode::eval}) {
          const Plan plan{kBlocks + 1, 2, options, mode};
          const bool keeps_ends = options.keep_root_unsharded && mode == Mode::train;
          run_plan(plan, [&](const Hook& hook, bool is_replay, const ActionChecker& checker) {
            CAPTURE(text_of(plan), options.limit);
            REQUIRE(checker.most_blocks_held() <= options.limit + (keeps_ends ? 2 : 0));
            if (hook.kind == Kind::end && is_replay && !keeps_ends)
              REQUIRE(checker.most_blocks_held() == options.limit);
          });
          Scheduler scheduler = test::scheduler_of(plan.units, options);
          ActionChecker checker(plan.units);
          run_step(plan, scheduler, checker, [](const Hook&, bool) {});
          REQUIRE(checker.aside() == 0);
        }
      }
    }
  }
}

TEST_CASE("with a limit above the prefetch a buffer goes back when the gather that would exceed it is asked for") {
  Scheduler scheduler(test::unit_names(4), {.prefetch = 0, .limit = 2, .keep_root_unsharded = false});
  const std::vector<std::string> expected = {
      "gather 0, wait_gathered 0",
      "gather 1, wait_gathered 1",
      "defer_free 1",
      "gather 2, wait_gathered 2",
      "defer_free 2",
      "free_deferred 1, gather 3, wait_gathered 3",
      "defer_free 3",
      "free_full 0",
      "gather 0, wait_gathered 0, begin_gradient 0",
      "free_deferred 2, gather 3, wait_gathered 3, begin_gradient 3",
      "defer_free 3, reduce 3",
      "free_deferred 3, gather 2, wait_gathered 2, begin_gradient 2",
      "defer_free 2, reduce 2",
      "free_deferred 3, gather 1, wait_gathered 1, begin_gradient 1",
      "defer_free 1, release_gradient 3, reduce 1",
      "free_full 0, release_gradient 2, reduce 0",
      "free_deferred 2, free_deferred 1, release_gradient 1, release_gradient 0",
  };
  CHECK(script(scheduler, test::step_hooks(4, Mode::train, 1), Mode::train) == expected);
  CHECK(script(scheduler, test::step_hooks(4, Mode::train, 1), Mode::train) == expected);
}

TEST_CASE("a limit below the prefetch cuts it short, lists too") {
  Scheduler scheduler(test::unit_names(5), {.prefetch = 3, .limit = 2, .keep_root_unsharded = false});
  test::run_hooks(scheduler, test::step_hooks(5, Mode::train, 1), Mode::train);
  scheduler.set_prefetch(Phase::forward, 2, {3, 4});
  std::vector<std::string> asked;
  for (const Hook& hook : test::step_hooks(5, Mode::train, 1)) {
    const auto actions = test::call(scheduler, hook, Mode::train);
    if (hook.kind == Kind::before_forward) asked.push_back(test::text_of(actions));
  }
  CHECK(asked == std::vector<std::string>{"gather 0, wait_gathered 0, gather 1, gather 2", "wait_gathered 1",
                                          "wait_gathered 2, gather 3", "wait_gathered 3, gather 4", "wait_gathered 4"});
}

TEST_CASE("reductions in flight never exceed the cap, beside one gradient being filled and the root's") {
  for_each_plan([](const Plan& plan) {
    run_plan(plan, [&](const Hook&, bool, const ActionChecker& checker) {
      REQUIRE(checker.most_reducing() <= plan.options.max_reductions_in_flight);
      REQUIRE(checker.most_blocks_filling() <= (plan.options.reduce_every_micro_batch ? 1 : plan.units - 1));
    });
  });
}

TEST_CASE("a unit's backward runs beside the reduction of the one before it") {
  for_each_plan([](const Plan& plan) {
    if (!plan.options.reduce_every_micro_batch) return;
    run_plan(plan, [&](const Hook& hook, bool, const ActionChecker& checker) {
      if (hook.kind != Kind::before_backward || hook.unit == 0) return;
      const int done = plan.units - 1 - hook.unit;
      REQUIRE(checker.reducing() >= std::min(done, plan.options.max_reductions_in_flight));
    });
  });
}

}  // namespace zs::scheduler_limits_test
