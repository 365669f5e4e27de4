// Micro-batches that end early, by an error or because their step is abandoned.
#include <catch2/catch.hpp>

#include "runtime/base/check.h"
#include "tests/shard/scheduler_plans.h"

namespace zs::test::scheduler_abandon_test {
namespace {

/// Runs `count` hooks, then gives up as the runtime does after an exception.
void run_and_abandon(Scheduler& scheduler, ActionChecker& checker, const std::vector<Hook>& hooks, std::size_t count,
                     bool of_step) {
  for (std::size_t i = 0; i < count; ++i) checker.apply(call(scheduler, hooks[i], Mode::train));
  checker.apply(scheduler.abandon(of_step));
}

}  // namespace

TEST_CASE("a refused end of a micro-batch changes nothing") {
  Scheduler scheduler = recorded_scheduler();
  ActionChecker checker(4);
  scheduler.begin_micro_batch(Mode::train, true);
  checker.apply(scheduler.before_forward(0));
  checker.apply(scheduler.after_forward(0));
  checker.apply(scheduler.before_forward(3));
  REQUIRE_THROWS_AS(scheduler.end_micro_batch(), Error);
  for (int unit = 0; unit < 4; ++unit) CHECK((scheduler.state(unit) != UnitState::sharded) == checker.has_full(unit));
  checker.apply(scheduler.abandon());
  check_clean_end(scheduler, checker);
}

TEST_CASE("I7: a step abandoned after any hook leaves everything sharded, and the next step is the undisturbed one") {
  for (int bits = 0; bits < 16; ++bits) {
    const Policy options{{.prefetch = (bits & 2) != 0 ? 2 : 0, .limit = (bits & 8) != 0 ? 4 : 0},
                         {.reshard_after_forward = (bits & 1) != 0, .reduce_every_micro_batch = (bits & 4) != 0}};
    const auto hooks = step_hooks(4, Mode::train, 2);
    for (const bool is_replay : {false, true}) {
      Scheduler undisturbed = scheduler_of(4, options);
      if (is_replay) run_hooks(undisturbed, hooks, Mode::train);
      const auto expected = text_of(run_hooks(undisturbed, hooks, Mode::train));
      for (std::size_t stop = 0; stop <= hooks.size(); ++stop) {
        Scheduler scheduler = scheduler_of(4, options);
        if (is_replay) run_hooks(scheduler, hooks, Mode::train);
        ActionChecker checker(4);
        run_and_abandon(scheduler, checker, hooks, stop, true);
        REQUIRE_FALSE(scheduler.is_in_micro_batch());
        check_clean_end(scheduler, checker);
        if (is_replay || stop <= hooks.size() / 2 - 1)
          REQUIRE(text_of(run_hooks(scheduler, hooks, Mode::train)) == expected);
      }
    }
  }
}

TEST_CASE(
    "I7: a micro-batch abandoned after any hook leaves no shard, sum or delayed reduction of its own, whatever the "
    "scheme") {
  for (Policy options : policies()) {
    for (const bool delays : {false, true}) {
      options.delays_reductions = delays;
      const auto hooks = step_hooks(4, Mode::train, 2);
      Scheduler undisturbed = scheduler_of(4, options);
      run_hooks(undisturbed, hooks, Mode::train);
      const auto expected = text_of(run_hooks(undisturbed, hooks, Mode::train));
      for (std::size_t stop = 1; stop < hooks.size() / 2; ++stop) {  // within the first micro-batch
        CAPTURE(text_of(Plan{4, 2, options}), delays, stop);
        Scheduler scheduler = scheduler_of(4, options);
        run_hooks(scheduler, hooks, Mode::train);
        ActionChecker checker(4);
        run_and_abandon(scheduler, checker, hooks, stop, false);
        for (int unit = 0; unit < 4; ++unit) {
          CHECK(scheduler.shard_state(unit) == ShardState::none);
          CHECK(scheduler.sum_state(unit) == SumState::none);
        }
        REQUIRE(text_of(run_hooks(scheduler, hooks, Mode::train)) == expected);
      }
    }
  }
}

TEST_CASE(
    "I7: a micro-batch abandoned in its forward leaves what earlier ones have accumulated or summed, to the "
    "undisturbed end") {
  for (Policy options : policies()) {
    for (const bool reduces_each : {false, true}) {
      options.reduce_every_micro_batch = reduces_each;
      const auto hooks = step_hooks(4, Mode::train, 2);
      const std::size_t half = hooks.size() / 2;
      const std::vector<Hook> first(hooks.begin(), hooks.begin() + static_cast<std::ptrdiff_t>(half)),
          second(hooks.begin() + static_cast<std::ptrdiff_t>(half), hooks.end());
      for (std::size_t stop = 1; stop < 8; ++stop) {
        CAPTURE(text_of(Plan{4, 2, options}), stop);
        Scheduler scheduler = scheduler_of(4, options);
        run_hooks(scheduler, hooks, Mode::train);
        ActionChecker checker(4);
        const auto apply = [&](const std::vector<Hook>& some) {
          for (const Hook& hook : some) checker.apply(call(scheduler, hook, Mode::train));
        };
        apply(first);
        std::vector<std::pair<bool, SumState>> before;
        for (int unit = 0; unit < 4; ++unit)
          before.emplace_back(scheduler.grad_state(unit) == GradState::accumulating, scheduler.sum_state(unit));
        apply({second.begin(), second.begin() + static_cast<std::ptrdiff_t>(stop)});
        for (int unit = 0; unit < 4; ++unit) CHECK_FALSE(scheduler.is_mixed(unit));
        CHECK(scheduler.reduced().empty());
        checker.apply(scheduler.abandon());
        for (int unit = 0; unit < 4; ++unit) {
          const auto& [was_accumulating, sum] = before[static_cast<std::size_t>(unit)];
          CHECK((scheduler.grad_state(unit) == GradState::accumulating) == was_accumulating);
          CHECK(scheduler.sum_state(unit) == sum);
        }
        apply(second);
        check_clean_end(scheduler, checker);
      }
    }
  }
}

TEST_CASE("abandoning when nothing runs asks for nothing") {
  Scheduler scheduler = recorded_scheduler();
  CHECK(scheduler.abandon().empty());
}

}  // namespace zs::test::scheduler_abandon_test
