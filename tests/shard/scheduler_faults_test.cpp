#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <array>
#include <map>

#include "runtime/base/check.h"
#include "runtime/shard/schedule/scheduler.h"
#include "tests/message_of.h"
#include "tests/shard/scheduler_plans.h"

namespace zs::scheduler_faults_test {
namespace {

using test::ActionChecker;
using test::check_clean_end;
using test::Hook;
using test::message_of;
using test::recorded_scheduler;
using test::run_hooks;
using test::step_hooks;
using test::text_of;
using test::unit_names;
using Kind = Hook::Kind;
using Catch::Matchers::Contains;
using Strings = std::vector<std::string>;

/// Begins a micro-batch, and runs its blocks forward in this order; every use is checked.
ActionChecker run_forward(Scheduler& scheduler, Mode mode, const std::vector<int>& blocks) {
  ActionChecker checker(scheduler.size());
  scheduler.begin_micro_batch(mode, true);
  checker.apply(scheduler.before_forward(0));
  for (const int block : blocks) {
    checker.apply(scheduler.before_forward(block));
    checker.use(block);
    checker.apply(scheduler.after_forward(block));
  }
  checker.apply(scheduler.after_forward(0));
  return checker;
}

/// A training micro-batch whose blocks run forward in this order and backward in reverse; every use is checked.
ActionChecker run_blocks(Scheduler& scheduler, const std::vector<int>& blocks) {
  ActionChecker checker = run_forward(scheduler, Mode::train, blocks);
  checker.apply(scheduler.before_backward(0));
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    checker.apply(scheduler.before_backward(*block));
    checker.use(*block);
    checker.fill(*block);
    checker.apply(scheduler.after_backward(*block));
  }
  checker.apply(scheduler.after_backward(0));
  checker.apply(scheduler.end_micro_batch());
  return checker;
}

}  // namespace

TEST_CASE("a skipped unit is noted once a phase, its prefetch is cleaned up, and the next step is as before") {
  Scheduler scheduler = recorded_scheduler();
  const auto undisturbed = run_hooks(scheduler, step_hooks(4, Mode::train, 1), Mode::train);
  const ActionChecker checker = run_blocks(scheduler, {1, 3});
  check_clean_end(scheduler, checker);
  CHECK(scheduler.take_deviations() == Strings{"block2 in forward", "block0 in backward"});
  CHECK(checker.gathers(2) == 1);
  CHECK(checker.reduces(2) == 0);
  CHECK(run_hooks(scheduler, step_hooks(4, Mode::train, 1), Mode::train) == undisturbed);
  CHECK(scheduler.take_deviations().empty());
}

TEST_CASE("swapped units are gathered on demand and reduced once each") {
  const int prefetch = GENERATE(0, 1, 3);
  Scheduler scheduler = recorded_scheduler({.prefetch = prefetch});
  const ActionChecker checker = run_blocks(scheduler, {2, 1, 3});
  check_clean_end(scheduler, checker);
  for (int unit = 0; unit < 4; ++unit) CHECK(checker.reduces(unit) == 1);
  // Forward: block1 came early and block0 is not due any more. Backward expected block2, block1, block0.
  CHECK(scheduler.take_deviations() ==
        Strings{"block1 in forward", "block0 in forward", "block0 in backward", "block1 in backward"});
}

TEST_CASE("a unit that the order does not know is gathered on demand and noted once a phase") {
  Scheduler scheduler(unit_names(4), {});
  run_blocks(scheduler, {1, 2});
  CHECK(scheduler.take_deviations().empty());
  const ActionChecker checker = run_blocks(scheduler, {1, 3, 2});
  check_clean_end(scheduler, checker);
  CHECK(checker.gathers(3) == 2);
  CHECK(checker.reduces(3) == 1);
  CHECK(scheduler.take_deviations() == Strings{"block2 in forward", "block2 in backward"});
}

TEST_CASE("a unit that runs twice in forward is expected twice and reduced once") {
  Scheduler scheduler(unit_names(3), {});
  ActionChecker checker(3);
  for (int step = 0; step < 2; ++step) {
    checker.start_micro_batch();
    scheduler.begin_micro_batch(Mode::train, true);
    checker.apply(scheduler.before_forward(0));
    for (const int block : {1, 2, 1}) {
      checker.apply(scheduler.before_forward(block));
      checker.use(block);
      checker.apply(scheduler.after_forward(block));
    }
    checker.apply(scheduler.after_forward(0));
    for (const int unit : {0, 1, 2, 1}) {
      checker.apply(scheduler.before_backward(unit));
      checker.use(unit);
      if (unit == 2) checker.apply(scheduler.after_backward(unit));
    }
    checker.apply(scheduler.after_backward(1));
    checker.apply(scheduler.after_backward(0));
    checker.apply(scheduler.end_micro_batch());
    for (int unit = 0; unit < 3; ++unit) CHECK(checker.reduces(unit) == 1);
  }
  check_clean_end(scheduler, checker);
  CHECK(scheduler.take_deviations().empty());
}

TEST_CASE("a unit that runs several times in a row is gathered once for all of them, and so is what comes after it") {
  Scheduler scheduler(unit_names(4), {.keep_root_unsharded = false});
  std::vector<std::string> asked;
  for (int step = 0; step < 2; ++step) {
    ActionChecker checker(4);
    asked.clear();
    scheduler.begin_micro_batch(Mode::train, true);
    const auto note = [&](const std::vector<Action>& actions) {
      checker.apply(actions);
      if (!actions.empty()) asked.push_back(text_of(actions));
    };
    note(scheduler.before_forward(0));
    for (const int block : {1, 1, 1, 2, 3, 3}) {
      note(scheduler.before_forward(block));
      checker.use(block);
      note(scheduler.after_forward(block));
    }
    note(scheduler.after_forward(0));
    note(scheduler.end_micro_batch());
    check_clean_end(scheduler, checker);
  }
  CHECK(asked == std::vector<std::string>{"gather 0, wait_gathered 0, gather 1", "wait_gathered 1, gather 2",
                                          "free_full 1", "wait_gathered 2, gather 3", "free_full 2", "wait_gathered 3",
                                          "free_full 3", "free_full 0"});
  CHECK(scheduler.take_deviations().empty());
}

TEST_CASE(
    "a unit that was to run again at once and does not is resharded at the end of the micro-batch, and that is noted") {
  Scheduler scheduler(unit_names(3), {.keep_root_unsharded = false});
  for (const std::vector<int>& blocks : {std::vector<int>{1, 1, 2}, {1, 2}}) {
    ActionChecker checker = run_forward(scheduler, Mode::eval, blocks);
    checker.apply(scheduler.end_micro_batch());
    check_clean_end(scheduler, checker);
  }
  CHECK(scheduler.take_deviations() == Strings{"block1 in forward"});
}

TEST_CASE("a unit whose backward never completes is resharded and reduced at the end of the micro-batch") {
  Scheduler scheduler(unit_names(2), {});
  ActionChecker checker(2);
  scheduler.begin_micro_batch(Mode::train, true);
  checker.apply(scheduler.before_forward(0));
  checker.apply(scheduler.before_forward(1));
  checker.apply(scheduler.after_forward(1));
  checker.apply(scheduler.after_forward(0));
  checker.apply(scheduler.before_backward(0));
  checker.apply(scheduler.before_backward(1));
  checker.apply(scheduler.end_micro_batch());
  check_clean_end(scheduler, checker);
  CHECK(checker.reduces(0) == 1);
  CHECK(checker.reduces(1) == 1);
}

TEST_CASE("a hook in an illegal state is an error that names unit, state and operation") {
  Scheduler scheduler = recorded_scheduler();
  CHECK_THAT(message_of([&] { scheduler.before_forward(1); }),
             Contains("unit block0 cannot run forward outside a micro-batch: it is sharded with no gradient"));
  CHECK_THAT(
      message_of([&] { scheduler.before_backward(2); }),
      Contains("unit block1 cannot run backward outside a training micro-batch: it is sharded with no gradient"));
  CHECK_THAT(message_of([&] { scheduler.after_forward(3); }),
             Contains("unit block2 cannot end a forward that has not begun: it is sharded with no gradient"));
  CHECK_THAT(message_of([&] { scheduler.after_backward(0); }),
             Contains("unit root cannot end a backward that has not begun"));

  CHECK_THAT(message_of([&] { scheduler.before_recompute(1); }),
             Contains("unit block0 cannot run forward again outside a training"));

  scheduler.begin_micro_batch(Mode::eval, true);
  CHECK_THAT(message_of([&] { scheduler.before_backward(1); }),
             Contains("unit block0 cannot run backward outside a training"));
  CHECK_THAT(message_of([&] { scheduler.before_recompute(1); }),
             Contains("unit block0 cannot run forward again outside a training"));
  scheduler.end_micro_batch();

  scheduler.begin_micro_batch(Mode::train, true);
  scheduler.before_forward(0);
  scheduler.before_forward(1);
  CHECK_THAT(message_of([&] { scheduler.before_forward(1); }),
             Contains("unit block0 cannot run forward inside its own forward: it is unsharded with no gradient"));
  CHECK_THAT(message_of([&] { scheduler.end_micro_batch(); }),
             Contains("unit root cannot end the micro-batch inside its forward"));
  scheduler.after_forward(1);
  scheduler.after_forward(0);
  scheduler.before_backward(1);
  scheduler.after_backward(1);
  CHECK_THAT(
      message_of([&] { scheduler.before_backward(1); }),
      Contains("unit block0 cannot run backward again after its gradients were reduced: it is sharded with reducing"));
}

TEST_CASE("an action that the transition table does not allow is an error that names it") {
  Scheduler scheduler = recorded_scheduler();
  scheduler.begin_micro_batch(Mode::train, true);
  scheduler.before_forward(1);
  scheduler.before_backward(1);
  scheduler.after_backward(1);  // frees the unit inside its forward
  CHECK_THAT(message_of([&] { scheduler.after_forward(1); }),
             Contains("unit block0 cannot free_full: it is sharded with reducing"));
}

TEST_CASE("micro-batches do not nest and do not end before they begin") {
  Scheduler scheduler = recorded_scheduler();
  CHECK_THAT(message_of([&] { scheduler.end_micro_batch(); }), Contains("no micro-batch is running"));
  scheduler.begin_micro_batch(Mode::train, true);
  CHECK_THAT(message_of([&] { scheduler.begin_micro_batch(Mode::train, true); }), Contains("already running"));
}

TEST_CASE("a scheduler without units, with impossible options or asked for a unit it has not refuses") {
  CHECK_THROWS_AS(Scheduler({}, {}), Error);
  CHECK_THROWS_AS(Scheduler({"root"}, {.prefetch = -1}), Error);
  CHECK_THROWS_AS(Scheduler({"root"}, {.max_reductions_in_flight = 0}), Error);
  Scheduler scheduler({"root"}, {});
  scheduler.begin_micro_batch(Mode::train, true);
  CHECK_THAT(message_of([&] { scheduler.before_forward(1); }), Contains("unit 1 of 1"));
  CHECK_THAT(message_of([&] { scheduler.before_forward(-1); }), Contains("unit -1 of 1"));
}

TEST_CASE("the transition tables allow these actions in these states, and no others") {
  using A = Action::Kind;
  constexpr int kKinds = static_cast<int>(A::release_gradient) + 1;
  /// What each of the `states` becomes, by kind, where it does not stay as it is: -1 for what is refused.
  const auto table = [](int kind, auto states) {
    std::string text;
    for (const auto state : states) {
      const auto next = after(static_cast<A>(kind), state);
      text += !next ? "-" : *next == state ? "=" : fmt::to_string(static_cast<int>(*next));
    }
    return text;
  };
  std::map<std::string, std::string> found;
  for (int kind = 0; kind < kKinds; ++kind) {
    found[name_of(static_cast<A>(kind))] = fmt::format(
        "{} {} {} {}", table(kind, std::array{UnitState::sharded, UnitState::gathering, UnitState::unsharded}),
        table(kind, std::array{ShardState::none, ShardState::kept}),
        table(kind, std::array{GradState::none, GradState::accumulating, GradState::reducing, GradState::parked,
                               GradState::reloading}),
        table(kind, std::array{SumState::none, SumState::partial, SumState::parked}));
  }
  // Unit: sharded, gathering, unsharded; shard: none, kept; gradient: none, accumulating, reducing, parked, reloading;
  // sum: none, partial, parked.
  const std::map<std::string, std::string> expected = {{"gather", "1-- =- ===== ==="},
                                                       {"two_level_gather", "1-- 1- ===== ==="},
                                                       {"gather_secondary", "1-- -= ===== ==="},
                                                       {"wait_gathered", "-2- == ===== ==="},
                                                       {"keep_secondary_shard", "--= 1- ===== ==="},
                                                       {"drop_secondary_shard", "=== -0 ===== ==="},
                                                       {"free_full", "-00 == ===== ==="},
                                                       {"defer_free", "--0 == ===== ==="},
                                                       {"free_deferred", "=== == ===== ==="},
                                                       {"begin_gradient", "=== == 1---- ==="},
                                                       {"reduce", "=== == -2--- 1=-"},
                                                       {"finish", "=== == ===== -0-"},
                                                       {"park_gradient", "=== == -3--3 ==="},
                                                       {"reload_gradient", "=== == ---4- ==="},
                                                       {"resume_gradient", "=== == ----1 ==="},
                                                       {"park_sum", "=== == ===== -2-"},
                                                       {"reload_sum", "=== == ===== --1"},
                                                       {"release_gradient", "=== == -0000 ==="}};
  CHECK(found == expected);
}

}  // namespace zs::scheduler_faults_test
