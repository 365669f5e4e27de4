// When gradients are reduced, in which order, and what their sum is divided by.
#include <catch2/catch.hpp>

#include "tests/shard/partial_micro_batch.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/step_model.h"

namespace zs::test::reduction_test {
namespace {

using Kind = Action::Kind;
using Arrays = std::vector<std::vector<float>>;
using Rule = Division::Rule;

/// The weights, and the gradients that the optimizer took last, after two steps of two micro-batches, on rank 0 of
/// four.
std::pair<Arrays, Arrays> trained(const ShardOptions& options, float seed) {
  return on_ranks(4,
                  [&](World& world) {
                    ChainRun run(world, options);
                    for (int step = 1; step <= 2; ++step) {
                      run.micro_batch(2 * step, false, seed);
                      run.micro_batch(2 * step + 1, true, seed);
                      run.optimizer->step(1e-2f, step);
                    }
                    return std::pair(run.weights(), run.gradients());
                  })
      .front();
}

}  // namespace

TEST_CASE("rules of division give their factors") {
  const auto check = [](const Division& division, int ranks, float before, float after) {
    CAPTURE(static_cast<int>(division.rule), ranks);
    CHECK(division.factors(ranks).before == before);
    CHECK(division.factors(ranks).after == after);
  };
  check({Rule::none}, 8, 1, 1);
  check({}, 3, 1, 3);  // the mean
  check({Rule::mean}, 3, 1, 3);
  check({Rule::custom, 5}, 3, 5, 1);
  check({Rule::custom_last, 5}, 3, 1, 5);
  check({Rule::split_root}, 1, 1, 1);
  check({Rule::split_root}, 2, 2, 1);
  check({Rule::split_root}, 4, 2, 2);
  check({Rule::split_root}, 8, 4, 2);
  check({Rule::split_root}, 9, 4, 2.25f);
  check({Rule::split_root}, 64, 8, 8);
  check({Rule::split_root}, 4096, 64, 64);
  CHECK_THROWS_AS(Division({Rule::custom, 0}).factors(2), Error);
}

TEST_CASE("every rule that divides by the ranks trains to the bits of a loss scaled by them, in every scheme") {
  for (const std::string& name : scheme_names()) {
    ShardOptions options{.scheme = scheme_of(name, 4), .division = {Rule::none}};
    const auto expected = trained(options, 0.25f);
    for (const Division division : {Division{}, Division{Rule::mean}, Division{Rule::split_root},
                                    Division{Rule::custom, 4}, Division{Rule::custom_last, 4}}) {
      options.division = division;
      CAPTURE(name, static_cast<int>(division.rule));
      CHECK((trained(options, 1.0f) == expected));  // a power of two, so that dividing rounds nothing
    }
    options.division = {Rule::none};
    CHECK((trained(options, 1.0f) != expected));
  }
}

TEST_CASE("the split rule divides a rank's gradient before the sum and the sum once, before the optimizer") {
  const auto traces = on_ranks(4, [](World& world) {
    ChainRun run(world, {.division = {Rule::split_root}});
    run.device->trace().start();
    run.micro_batch(0, false);
    run.micro_batch(1);
    run.runtime.executor().wait_reductions();  // again by the optimizer
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
    std::vector<std::string> names;
    for (const TraceEntry& entry : run.device->trace().entries()) {
      if (entry.kind == TraceEntry::Kind::op &&
          (entry.op.name.starts_with("divide") || entry.op.name.starts_with("reduce_scatter"))) {
        names.push_back(entry.op.name.substr(0, entry.op.name.find(':')));
      }
    }
    return names;
  });
  std::vector<std::string> expected;
  for (int unit = 0; unit < 2 * 4; ++unit) expected.insert(expected.end(), {"divide", "reduce_scatter"});
  expected.insert(expected.end(), 4, "divide_sum");
  CHECK(traces[0] == expected);
}

TEST_CASE(
    "micro-batches under NoSync are reduced with the next one, once, to the bits of reducing once a step, in every "
    "scheme") {
  for (const std::string& name : scheme_names()) {
    const auto run_of = [&](bool by_option) {
      return on_ranks(4, [&](World& world) {
        SchemeOptions scheme = scheme_of(name, 4);
        if (by_option) scheme.reduce_every_micro_batch = false;
        ChainRun run(world, {.scheme = scheme});
        std::vector<std::ptrdiff_t> reductions;
        for (int i = 0; i < 4; ++i) {
          std::optional<NoSync> guard;
          if (!by_option && i < 3) guard.emplace(run.runtime);
          run.micro_batch(i, i == 3);
          for (int unit = 0; unit < 4; ++unit)
            reductions.push_back(run.count(Kind::reduce, unit) + run.count(Kind::finish, unit));
        }
        run.runtime.executor().wait_reductions();
        return std::pair(run.gradients(), reductions);
      });
    };
    const SchemeOptions scheme = scheme_of(name, 4);  // some reduce each, or once, by their nature
    const bool goes_once = scheme.strategy != Strategy::zero1 && scheme.strategy != Strategy::zero2 &&
                           scheme.strategy != Strategy::ddp && !scheme.all_reduce_every_micro_batch;
    const auto by_guard = run_of(false), by_option = goes_once ? run_of(true) : by_guard;
    CAPTURE(name);
    for (std::size_t rank = 0; rank < 4; ++rank) CHECK((by_guard[rank] == by_option[rank]));
    const auto& counts = by_guard[0].second;
    CHECK(std::all_of(counts.begin(), counts.begin() + 12, [](std::ptrdiff_t count) { return count == 0; }));
    CHECK(std::all_of(counts.begin() + 12, counts.end(), [](std::ptrdiff_t count) { return count >= 1; }));
  }
}

TEST_CASE("what was reduced before a last micro-batch under NoSync is finished in it, in every scheme") {
  for (const std::string& name : scheme_names()) {
    const auto gradients = [&](bool has_more) {
      return on_ranks(4, [&](World& world) {
        ChainRun run(world, {.scheme = scheme_of(name, 4)});
        run.micro_batch(0, !has_more);
        if (has_more) {
          const NoSync guard(run.runtime);
          run.micro_batch(1);
        }
        const bool is_right = !has_more || run.runtime.scheduler().grad_state(2) == GradState::accumulating;
        run.runtime.executor().wait_reductions();
        return std::pair(run.gradients(), is_right);
      });
    };
    if (scheme_of(name, 4).strategy == Strategy::zero1 || !scheme_of(name, 4).reduce_every_micro_batch) continue;
    CAPTURE(name);
    const auto expected = gradients(false), found = gradients(true);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CHECK((found[rank].first == expected[rank].first));
      CHECK(found[rank].second);
    }
  }
}

TEST_CASE("NoSync concerns micro-batches that begin while it lives, nests, and holds beyond the end of a step") {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(*world);
  {
    const NoSync outer(run.runtime);
    { const NoSync inner(run.runtime); }
    run.micro_batch(0, true);
    CHECK(run.count(Kind::reduce, 1) == 0);
    CHECK(run.runtime.scheduler().grad_state(1) == GradState::accumulating);
    run.runtime.begin_micro_batch(Mode::train, true);
  }
  const Tensor loss = run.model.loss(chain_input(run.context, 1), chain_targets(run.context));
  backward(loss);
  run.runtime.end_micro_batch();
  CHECK(run.count(Kind::reduce, 1) == 0);  // it had begun before
  run.micro_batch(2, true);
  CHECK(run.count(Kind::reduce, 1) == 1);
}

TEST_CASE("a parameter that backward did not use has a gradient of zero, and its unit one reduction") {
  const auto problems = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.micro_batch(0);  // leaves gradients in every buffer
    run.optimizer->step(1e-2f, 1);
    partial_micro_batch(run, false);
    const FlatParameter& unit = run.runtime.executor().units()[2];
    const auto gradient = run.gradients()[2];
    bool is_right = run.count(Kind::reduce, 2) == 1, has_weight = false;
    for (const ShardSegment& segment : unit.layout->segments(world.rank())) {
      for (std::int64_t i = segment.shard_offset; i < segment.shard_offset + segment.count; ++i) {
        const bool is_zero = gradient[static_cast<std::size_t>(i)] == 0;
        if (segment.view == 1) is_right = is_right && is_zero;
        has_weight = has_weight || (segment.view == 0 && !is_zero);
      }
    }
    return is_right && has_weight;
  });
  CHECK(problems == std::vector<bool>{true, true});
}

TEST_CASE("a unit without backward is left out of the reduction, or reduced once as zeros where that is asked for") {
  const bool reduces_unused = GENERATE(false, true);
  const auto results = on_ranks(2, [&](World& world) {
    ChainRun run(world, {.schedule = {.reduces_unused = reduces_unused}});
    for (int step = 1; step <= 2; ++step) {
      run.micro_batch(step);
      run.optimizer->step(1e-2f, step);
    }
    partial_micro_batch(run, true);
    const auto gradient = run.gradients()[2];
    const bool is_zero = std::all_of(gradient.begin(), gradient.end(), [](float value) { return value == 0; });
    return std::pair(run.count(Kind::reduce, 2), is_zero);
  });
  CHECK(results[0].first == (reduces_unused ? 1 : 0));
  CHECK(results[0].second == reduces_unused);  // else what the last step left
}

TEST_CASE("reductions delayed by one unit are asked for when the next unit's backward begins") {
  Scheduler scheduler(unit_names(3), {.prefetch = 0, .delays_reductions = true});
  std::vector<std::string> asked;
  for (const Hook& hook : step_hooks(3, Mode::train, 1)) {
    const std::string text = text_of(call(scheduler, hook, Mode::train));
    if (hook.kind == Hook::Kind::before_backward || hook.kind == Hook::Kind::after_backward ||
        hook.kind == Hook::Kind::end) {
      if (!text.empty()) asked.push_back(text);
    }
  }
  CHECK(asked == std::vector<std::string>{
                     "begin_gradient 0",
                     "gather 2, wait_gathered 2, begin_gradient 2",
                     "free_full 2",
                     "reduce 2, gather 1, wait_gathered 1, begin_gradient 1",
                     "free_full 1",
                     "free_full 0, reduce 1",
                     "release_gradient 2, reduce 0, release_gradient 1, release_gradient 0",
                 });
}

TEST_CASE("I1: delayed reductions and prefetch after backward do not change a bit") {
  ShardOptions options;
  options.schedule.prefetch = GENERATE(0, 1, 2);
  const auto expected = trained(options, 0.25f);
  options.schedule.delays_reductions = GENERATE(false, true);
  options.schedule.prefetch_after_backward = true;
  CHECK((trained(options, 0.25f) == expected));
}

TEST_CASE(
    "with prefetch after backward the next unit is gathered when one is done, so that one at a time is unsharded") {
  Scheduler scheduler(unit_names(4), {.prefetch = 1, .prefetch_after_backward = true});
  run_hooks(scheduler, step_hooks(4, Mode::train, 1), Mode::train);
  std::vector<std::string> asked;
  for (const Hook& hook : step_hooks(4, Mode::train, 1)) {
    const std::string text = text_of(call(scheduler, hook, Mode::train));
    if (hook.unit == 2 && hook.kind == Hook::Kind::before_backward && !text.empty()) asked.push_back(text);
    if (hook.unit == 2 && hook.kind == Hook::Kind::after_backward) asked.push_back(text);
  }
  CHECK(asked == std::vector<std::string>{"wait_gathered 2, begin_gradient 2", "free_full 2, gather 1, reduce 2"});
}

TEST_CASE("reductions wait for what is more urgent, once") {
  const auto seen = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.micro_batch(0);
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
    run.device->trace().start();
    Event urgent;
    run.device->stream(StreamRole::offload).record(urgent);
    run.runtime.executor().hold_reductions(urgent);
    run.micro_batch(1);
    run.device->trace().stop();
    std::int64_t record = -1;
    std::vector<std::string> order;
    for (const TraceEntry& entry : run.device->trace().entries()) {
      if (entry.kind == TraceEntry::Kind::record && entry.stream == StreamRole::offload) record = entry.record_id;
      if (entry.stream != StreamRole::reduce) continue;
      if (entry.kind == TraceEntry::Kind::wait && entry.record_id == record) order.emplace_back("wait");
      if (entry.kind == TraceEntry::Kind::op) order.emplace_back("reduce");
    }
    return order;
  });
  CHECK(seen[0] == std::vector<std::string>{"wait", "reduce", "reduce", "reduce", "reduce"});
}

}  // namespace zs::test::reduction_test
