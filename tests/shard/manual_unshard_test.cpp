// Gathering and freeing by hand, and prefetch by lists.
#include <catch2/catch.hpp>

#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/step_model.h"

namespace zs::test::manual_unshard_test {
namespace {

using Catch::Contains;
using Kind = Action::Kind;
using Phase = ExecOrder::Phase;

bool is_bound(const Parameter& parameter) {
  return message_of([&] { (void)parameter.value(); }).empty();
}

/// Per-hook actions of one training micro-batch, without the hooks that ask for nothing.
std::vector<std::string> script(Scheduler& scheduler, int units) {
  std::vector<std::string> asked;
  for (const Hook& hook : step_hooks(units, Mode::train, 1)) {
    const std::string text = text_of(call(scheduler, hook, Mode::train));
    if (!text.empty()) asked.push_back(text);
  }
  return asked;
}

}  // namespace

TEST_CASE("a unit unsharded by hand is gathered once, usable after the wait, and free after resharding") {
  const auto problems = on_ranks(2, [](World& world) {
    ChainRun run(world);
    std::string problem;
    const auto expect = [&](bool holds, const char* what) { problem += holds ? "" : fmt::format("{}; ", what); };
    const Parameter& weight = run.model.layers[0]->weight;
    const auto handle = run.runtime.unshard(1);
    expect(!is_bound(weight), "bound before the wait");
    expect(run.runtime.scheduler().state(1) == UnitState::gathering, "not on its way");
    run.runtime.unshard(1);
    handle.wait();
    handle.wait();
    run.runtime.unshard(1).wait();
    expect(is_bound(weight), "not bound after the wait");
    expect(run.count(Kind::gather, 1) == 1, "gathered more than once");
    expect(run.count(Kind::wait_gathered, 1) == 1, "waited for more than once");
    run.runtime.reshard(1);
    run.runtime.reshard(1);
    expect(!is_bound(weight), "bound after resharding");
    expect(run.count(Kind::free_full, 1) == 1, "freed more than once");
    expect(run.device->memory().live_by_label().contains("full_param") == false ||
               run.device->memory().live_by_label().at("full_param") == 0,
           "its buffer is still there");
    run.micro_batch(0);
    return problem;
  });
  CHECK(problems == std::vector<std::string>{"", ""});
}

TEST_CASE("a unit is not resharded by hand within its own forward or backward") {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(*world);
  run.runtime.begin_micro_batch(Mode::train, true);
  run.runtime.before_forward(1);
  CHECK_THAT(message_of([&] { run.runtime.reshard(1); }),
             Contains("unit layer0 cannot be resharded within its own forward or backward"));
  run.runtime.after_forward(1);
  run.runtime.reshard(1);
  run.runtime.end_micro_batch();
}

TEST_CASE("weights are not updated while a unit is unsharded by hand") {
  const auto messages = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.micro_batch(0);
    run.runtime.unshard(2).wait();
    std::string message = message_of([&] { run.optimizer->step(1e-2f, 1); });
    run.runtime.reshard(2);
    run.device->synchronize();
    return message;
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("unit layer1") && Contains("unsharded"));
}

TEST_CASE("pregathered units are not gathered again in forward, and train to the same bits") {
  const auto train = [](bool pregathers) {
    return on_ranks(2, [pregathers](World& world) {
      ChainRun run(world);
      std::ptrdiff_t gathers = 0;
      for (int step = 1; step <= 3; ++step) {
        if (pregathers) run.runtime.pregather();
        run.micro_batch(step);
        gathers = 0;
        for (int unit = 0; unit < 4; ++unit) gathers += run.count(Kind::gather, unit);
        run.optimizer->step(1e-2f, step);
      }
      return std::pair(run.weights(), gathers);
    });
  };
  const auto with = train(true), without = train(false);
  for (std::size_t rank = 0; rank < 2; ++rank) CHECK(with[rank].first == without[rank].first);
  CHECK(without[0].second == 6);
  CHECK(with[0].second == 2);  // the two inner blocks, for backward
}

TEST_CASE("explicit lists replace the recorded order for the units that have one, of any depth, forward and backward") {
  Scheduler scheduler(unit_names(4), {.prefetch = 1});
  scheduler.set_prefetch(Phase::forward, 0, {1, 2});
  scheduler.set_prefetch(Phase::forward, 1, {});
  scheduler.set_prefetch(Phase::backward, 3, {2, 1});
  const std::vector<std::string> first = {
      "gather 0, wait_gathered 0, gather 1, gather 2",  // from the first micro-batch on
      "wait_gathered 1",
      "free_full 1",
      "wait_gathered 2",
      "free_full 2",
      "gather 3, wait_gathered 3",
      "free_full 3",
      "begin_gradient 0",
      "gather 3, wait_gathered 3, gather 2, gather 1, begin_gradient 3",
      "free_full 3, reduce 3",
      "wait_gathered 2, begin_gradient 2",
      "free_full 2, reduce 2",
      "wait_gathered 1, begin_gradient 1",
      "free_full 1, release_gradient 3, reduce 1",
      "free_full 0, release_gradient 2, reduce 0",
      "release_gradient 1, release_gradient 0",
  };
  CHECK(script(scheduler, 4) == first);
  const std::vector<std::string> second = script(scheduler, 4);
  CHECK(second[0] == first[0]);
  CHECK(second[1] == first[1]);
  CHECK(second[3] == "wait_gathered 2, gather 3");  // unit 2 has no list: the order says 3
  CHECK_THROWS_AS(scheduler.set_prefetch(Phase::forward, 0, {4}), Error);
}

TEST_CASE("a listed unit whose turn is over in the recorded order is not gathered") {
  Scheduler scheduler(unit_names(4), {.prefetch = 0});
  scheduler.set_prefetch(Phase::backward, 1, {2, 3});
  const auto has = [](const std::vector<std::string>& actions, const std::string& wanted) {
    return std::find(actions.begin(), actions.end(), wanted) != actions.end();
  };
  CHECK(has(script(scheduler, 4), "gather 1, wait_gathered 1, gather 2, gather 3, begin_gradient 1"));
  CHECK(has(script(scheduler, 4), "gather 1, wait_gathered 1, begin_gradient 1"));
}

TEST_CASE("I1: lists of any kind, mis-aimed ones too, do not change a bit") {
  const auto train = [](const std::vector<std::vector<int>>& lists) {
    return on_ranks(2, [&](World& world) {
      ChainRun run(world);
      for (std::size_t unit = 0; unit < lists.size(); ++unit) {
        run.runtime.set_prefetch(Phase::forward, static_cast<int>(unit), lists[unit]);
        run.runtime.set_prefetch(Phase::backward, static_cast<int>(unit), lists[unit]);
      }
      for (int step = 1; step <= 2; ++step) {
        run.micro_batch(step);
        run.optimizer->step(1e-2f, step);
      }
      return run.weights();
    });
  };
  const auto implicit = train({});
  CHECK(train({{1, 2, 3}, {2}, {3}, {}}) == implicit);
  CHECK(train({{3}, {0, 1, 2, 3}, {1}, {1, 2}}) == implicit);
}

TEST_CASE("a prefetch that is used by nobody is freed at the end of its micro-batch and reported by name") {
  Scheduler scheduler(unit_names(4), {.prefetch = 0});
  scheduler.set_prefetch(Phase::forward, 0, {3});
  ActionChecker checker(4);
  scheduler.begin_micro_batch(Mode::eval, true);
  checker.apply(scheduler.before_forward(0));
  checker.apply(scheduler.before_forward(1));
  checker.apply(scheduler.after_forward(1));
  checker.apply(scheduler.after_forward(0));
  CHECK(checker.has_full(3));
  checker.apply(scheduler.end_micro_batch());
  CHECK_FALSE(checker.has_full(3));
  CHECK(checker.faults().empty());
  CHECK(scheduler.take_unused_gathers() == std::vector<std::string>{"block2"});
  CHECK(scheduler.take_unused_gathers().empty());
}

}  // namespace zs::test::manual_unshard_test
