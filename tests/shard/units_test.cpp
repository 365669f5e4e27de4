// What a unit is: who owns which parameter, who may use it where, and that runtimes do not know each other.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>

#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/scheme_cases.h"
#include "tests/stderr_of.h"

namespace zs::test::units_test {
namespace {

using Catch::Contains;

std::vector<float> train(ChainRun& run, int steps) {
  std::vector<float> losses;
  for (int step = 1; step <= steps; ++step) {
    losses.push_back(run.micro_batch(2 * step, false));
    losses.push_back(run.micro_batch(2 * step + 1));
    run.optimizer->step(1e-2f, step);
  }
  return losses;
}

/// A block that has a block of its own inside.
struct Outer : Module {
  explicit Outer(const std::string& path)
      : Module(path),
        own(add_parameter("own", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)),
        inner(path_of("inner")) {
    add_child(inner);
  }
  bool is_block() const override { return true; }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    const Tensor y = inner.forward(output(linear(input(x), own, nullptr)));
    return add(x, output(linear(input(y), own, nullptr)));
  }
  Parameter& own;
  ChainLayer inner;
};

struct Nest : Module {
  Nest() : Module(""), head(add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)) {
    for (Outer& outer : outers) add_child(outer);
  }
  Tensor loss(const Tensor& x, const Tensor& targets) {
    const ForwardScope scope = enter();
    Tensor y = x;
    for (Outer& outer : outers) y = outer.forward(y);
    return lm_head_loss(input(y), head, targets, kChainWidth);
  }
  Parameter& head;
  std::array<Outer, 2> outers{Outer("outer0"), Outer("outer1")};
};

struct NestResult {
  std::string units;  // "root: head; outer0: outer0.own; ..."
  Weights weights;    // after two steps
};

NestResult train_nest(World& world, const SchemeOptions& scheme, int prefetch, Units units) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Nest nest;
  ShardedRuntime runtime(context, world, in_tests({.scheme = scheme, .schedule = {.prefetch = prefetch}, .seed = 5}));
  shard_module(nest, runtime, units);
  AdamW optimizer(runtime.executor(), {.clip = 0});  // whose sum depends on the units
  for (int i = 0; i < 4; ++i) {
    runtime.begin_micro_batch(Mode::train, i % 2 == 1);
    backward(nest.loss(chain_input(context, i * 8 + world.rank()), chain_targets(context)));
    runtime.end_micro_batch();
    if (i % 2 == 1) optimizer.step(1e-2f, i / 2 + 1);
  }
  return {units_of(runtime.executor()), weights_of(runtime.executor())};
}

}  // namespace

TEST_CASE("a block inside a block is a unit of its own, and trains to the bits of one unit, in every scheme") {
  for (const std::string& name : scheme_names()) {
    for (const int prefetch : {0, 2}) {
      CAPTURE(name, prefetch);
      const auto blocks =
          on_ranks(4, [&](World& world) { return train_nest(world, scheme_of(name, 4), prefetch, Units::block); });
      const auto whole =
          on_ranks(4, [&](World& world) { return train_nest(world, scheme_of(name, 4), prefetch, Units::model); });
      CHECK(blocks[0].units ==
            "root: head; outer0: outer0.own; outer0.inner: outer0.inner.weight outer0.inner.bias; "
            "outer1: outer1.own; outer1.inner: outer1.inner.weight outer1.inner.bias; ");
      CHECK((blocks[0].weights == whole[0].weights));
    }
  }
}

TEST_CASE("blocks are units, and the root unit owns what is in none, each parameter once and in order") {
  const auto world = make_single_world({.timeout_s = 60});
  const ChainRun run(*world);
  std::vector<std::string> names;
  for (const FlatParameter& unit : run.runtime.executor().units()) {
    for (const Parameter* parameter : unit.parameters) names.push_back(unit.name + ": " + parameter->name());
  }
  CHECK(names == std::vector<std::string>{"root: head", "layer0: layer0.weight", "layer0: layer0.bias",
                                          "layer1: layer1.weight", "layer1: layer1.bias", "layer2: layer2.weight",
                                          "layer2: layer2.bias"});
}

TEST_CASE("a parameter belongs to one unit, and units come before the first micro-batch") {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(*world);
  CHECK_THAT(message_of([&] { run.runtime.add_unit("again", {&run.model.head}); }),
             Contains("parameter head already belongs to a unit"));
  run.micro_batch(0);
  Chain other;
  CHECK_THAT(message_of([&] { run.runtime.add_unit("late", {&other.head}); }),
             Contains("unit late is added after the first micro-batch"));
}

TEST_CASE("0-43: a module may run alone before the model has, and the model runs as if it had not") {
  const auto trained = [](World& world, bool runs_first) {
    ChainRun run(world);
    if (runs_first) {
      run.runtime.begin_micro_batch(Mode::eval, true);
      run.model.layers[1]->forward(chain_input(run.context, 0));
      run.runtime.end_micro_batch();
    }
    run.micro_batch(0);
    const auto gathers = run.count(Action::Kind::gather, 0) + run.count(Action::Kind::gather, 2);
    run.optimizer->step(1e-2f, 1);
    run.micro_batch(1);
    run.optimizer->step(1e-2f, 2);
    return std::pair(run.weights(), gathers);
  };
  CHECK(on_ranks(2, [&](World& world) { return trained(world, true); }) ==
        on_ranks(2, [&](World& world) { return trained(world, false); }));
}

TEST_CASE("several modules in one unit train to the same bits as one unit each, with one gather for all of them") {
  const int ranks = GENERATE(1, 2);
  const auto separate = on_ranks(ranks, [](World& world) {
    ChainRun run(world, {.schedule = {.prefetch = 1}});
    auto losses = train(run, 3);
    return std::pair(losses, run.weights());
  });
  struct Joint {
    std::vector<float> losses;
    std::vector<std::vector<float>> weights;
    std::ptrdiff_t reductions = 0, gathers = 0;
  };
  const auto joint = on_ranks(ranks, [](World& world) {
    ChainRun run(world, {.schedule = {.prefetch = 1, .keep_root_unsharded = false}},
                 [](Chain& chain, ShardedRuntime& runtime) {
                   chain.attach(&runtime, runtime.add_unit("root", {&chain.head}));
                   std::vector<Parameter*> both;
                   for (std::size_t i = 0; i < 2; ++i)
                     both.insert(both.end(), {&chain.layers[i]->weight, &chain.layers[i]->bias});
                   const int pair = runtime.add_unit("pair", both);
                   chain.layers[0]->attach(&runtime, pair);
                   chain.layers[1]->attach(&runtime, pair);
                   chain.layers[2]->attach(
                       &runtime, runtime.add_unit("last", {&chain.layers[2]->weight, &chain.layers[2]->bias}));
                 });
    Joint result{train(run, 3), run.weights(), 0, 0};
    result.reductions = run.count(Action::Kind::reduce, 1);
    result.gathers = run.count(Action::Kind::gather, 1);
    return result;
  });
  for (std::size_t rank = 0; rank < joint.size(); ++rank) {
    CHECK(joint[rank].losses == separate[rank].first);
    CHECK(joint[rank].weights == separate[rank].second);
    CHECK(joint[rank].reductions == 1);
    CHECK(joint[rank].gathers == 2);  // for the forward, and for the backward
  }
}

TEST_CASE("blocks are merged in order until their units reach a size, and keep the names of the first and the last") {
  constexpr std::int64_t kBlock = (kChainWidth + 1) * kChainWidth * 4;  // bytes of f32
  const auto world = make_single_world({.timeout_s = 60});
  const auto names = [&](std::int64_t unit_bytes, Units units, DType param) {
    const ChainRun run(*world, {.precision = {.param = param}}, [&](Chain& chain, ShardedRuntime& runtime) {
      shard_module(chain, runtime, units, {}, {}, unit_bytes);
    });
    std::string all;
    for (const FlatParameter& unit : run.runtime.executor().units())
      all += fmt::format("{} {}, ", unit.name, unit.parameters.size());
    return all;
  };
  CHECK(names(0, Units::block, DType::f32) == "root 1, layer0 2, layer1 2, layer2 2, ");
  CHECK(names(kBlock, Units::block, DType::f32) == "root 1, layer0 2, layer1 2, layer2 2, ");
  CHECK(names(kBlock + 1, Units::block, DType::f32) == "root 1, layer0-2 6, ");
  CHECK(names(kBlock, Units::block, DType::bf16) == "root 1, layer0-2 6, ");
  CHECK(names(std::int64_t{1} << 60, Units::block, DType::f32) == "root 1, layer0-2 6, ");
  CHECK(names(kBlock, Units::model, DType::f32) == "root 7, ");
}

TEST_CASE("blocks with policies of their own are not merged with others") {
  const auto world = make_single_world({.timeout_s = 60});
  const auto policy = [](const Module& unit) {
    return UnitPolicy{.precision = unit.path() == "layer0" ? std::optional(MixedPrecisionPolicy{.param = DType::bf16})
                                                           : std::nullopt};
  };
  const ChainRun run(*world, {}, [&](Chain& chain, ShardedRuntime& runtime) {
    shard_module(chain, runtime, Units::block, {}, policy, std::int64_t{1} << 30);
  });
  std::vector<std::string> names;
  for (const FlatParameter& unit : run.runtime.executor().units()) names.push_back(unit.name);
  CHECK(names == std::vector<std::string>{"root", "layer0", "layer1-2"});
}

TEST_CASE("a parameter that is tied into another unit is refused by name where that unit runs without its owner") {
  const auto messages = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.runtime.begin_micro_batch(Mode::train, true);
    std::string message = message_of([&] {
      const ForwardScope scope(&run.runtime, 1);
      linear(chain_input(run.context, 0), run.model.layers[2]->weight, nullptr);  // of unit 3
    });
    run.runtime.abandon();
    return message;
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("parameter layer2.weight is used while it is not unsharded") &&
                            Contains("layer2 has not been entered"));
}

TEST_CASE("a parameter that its unit uses first and last is reduced once, when both gradients are in") {
  const auto actions = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.micro_batch(0);  // the head is the first product and the last
    return run.runtime.actions();
  });
  std::vector<Action> reductions;
  std::copy_if(actions[0].begin(), actions[0].end(), std::back_inserter(reductions),
               [](const Action& action) { return action.kind == Action::Kind::reduce; });
  REQUIRE(reductions.size() == 4);
  CHECK(std::count(reductions.begin(), reductions.end(), Action{Action::Kind::reduce, Scheduler::kRoot}) == 1);
  CHECK(reductions.back().unit == Scheduler::kRoot);
}

TEST_CASE("I7: two models in one process, taking turns, train to the same bits as each alone") {
  const auto results = on_ranks(2, [](World& world) {
    const auto alone = [&](std::uint64_t seed) {
      ChainRun run(world, {.schedule = {.prefetch = 2}, .seed = seed});
      train(run, 2);
      return run.weights();
    };
    const auto first_alone = alone(1), second_alone = alone(2);
    ChainRun first(world, {.schedule = {.prefetch = 2}, .seed = 1}),
        second(world, {.schedule = {.prefetch = 2}, .seed = 2});
    for (int step = 1; step <= 2; ++step) {
      // The second model's micro-batches run inside those of the first.
      first.micro_batch(2 * step, false);
      second.micro_batch(2 * step, false);
      first.runtime.begin_micro_batch(Mode::train, true);
      const Tensor loss =
          first.model.loss(chain_input(first.context, (2 * step + 1) * 8 + world.rank()), chain_targets(first.context));
      second.micro_batch(2 * step + 1);
      backward(loss);
      second.optimizer->step(1e-2f, step);
      first.runtime.end_micro_batch();
      first.optimizer->step(1e-2f, step);
    }
    return first.weights() == first_alone && second.weights() == second_alone && first_alone != second_alone;
  });
  CHECK(results == std::vector<bool>{true, true});
}

TEST_CASE("a unit that leaves the recorded order is warned of once, by name, and the step goes on") {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(*world);
  const auto swapped = [&] {
    run.runtime.begin_micro_batch(Mode::train, true);
    const ForwardScope scope(&run.runtime, 0);
    Tensor y = linear(chain_input(run.context, 0), run.model.head, nullptr);
    for (const std::size_t i : {1, 0, 2}) y = run.model.layers[i]->forward(y);
    backward(lm_head_loss(y, run.model.head, chain_targets(run.context), kChainWidth));
  };
  run.micro_batch(0);
  const std::string said = stderr_of([&] {
    for (int i = 0; i < 3; ++i) {
      swapped();
      run.runtime.end_micro_batch();
    }
  });
  CHECK_THAT(said, Contains("layer1 in forward ran out of the recorded order"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

}  // namespace zs::test::units_test
