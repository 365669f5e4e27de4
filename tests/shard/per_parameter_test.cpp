// Training with parameters that are cut one by one, looked at from a trainer of one's own.
#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/message_of.h"
#include "tests/shard/chain_model.h"

namespace zs::test::per_parameter_test {
namespace {

using Catch::Contains;
using Arrays = std::vector<std::vector<float>>;

/// A chain's biases are 40 bytes long, its matrices 400.
LayoutOptions cut(std::int64_t min_shard_bytes = 0, int dim = 0) {
  LayoutOptions options{.layout = Layout::per_parameter, .min_shard_bytes = min_shard_bytes};
  if (dim != 0) options.dim = [dim](std::string_view, const Shape&) { return dim; };
  return options;
}

const std::vector<LayoutOptions>& layouts() {
  static const std::vector<LayoutOptions> all = {cut(), cut(0, -1), cut(50, -1), cut(1000)};
  return all;
}

/// Three steps of two micro-batches; `before` may do what it likes before each.
template <class Before>
Arrays trained(World& world, const ShardOptions& options, const Before& before) {
  ChainRun run(world, options);
  run.optimizer.emplace(run.runtime.executor(), AdamWConfig{.clip = 0.1f, .order_free = true});
  for (int step = 1; step <= 3; ++step) {
    before(run, step);
    run.micro_batch(2 * step, false);
    run.micro_batch(2 * step + 1);
    run.optimizer->step(1e-2f, step);
  }
  return run.weights();
}

Arrays trained(World& world, const ShardOptions& options) {
  return trained(world, options, [](ChainRun&, int) {});
}

std::vector<float> values_of(const Parameter& parameter) {
  const Buffer value = parameter.value();
  return {value.as<float>(), value.as<float>() + value.elems};
}

/// A module that two blocks and the root know: layer 0's own.
struct Sharing : Module {
  Sharing() : Module("") {
    add_child(*layers.emplace_back(std::make_unique<ChainLayer>("layer0")));
    add_child(*layers.emplace_back(std::make_unique<ChainLayer>("layer1")));
    struct Outer : Module {
      Outer() : Module("outer"), own(add_parameter("own", {3}, {}, false)) {}
      void hold(Module& module) { add_child(module); }
      Parameter& own;
    };
    auto outer = std::make_unique<Outer>();
    outer->hold(*layers[0]);
    add_child(*outer);
    add_child(*outer);
    others.push_back(std::move(outer));
  }
  std::vector<std::unique_ptr<ChainLayer>> layers;
  std::vector<std::unique_ptr<Module>> others;
};

}  // namespace

TEST_CASE(
    "1-6, 1.3-7a: a tied head, vectors and matrices train to the bits of the flat layout, whatever is whole and on "
    "which dim") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  const auto flat = on_ranks(ranks, [](World& world) { return trained(world, {}); });
  for (const LayoutOptions& layout : layouts()) {
    CAPTURE(ranks, layout.min_shard_bytes);
    CHECK(on_ranks(ranks, [&](World& world) { return trained(world, {.layout = layout}); }) == flat);
  }
}

TEST_CASE(
    "divided, delayed and withheld reductions and frozen parameters are the same bits when parameters are cut one by "
    "one") {
  const int way = GENERATE(range(0, 6));
  ShardOptions options;
  if (way == 0) options.division.rule = Division::Rule::mean;
  if (way == 1) options.division.rule = Division::Rule::split_root;
  if (way == 2) options.schedule.delays_reductions = true;
  if (way == 3) options.schedule.reduces_unused = true;
  const auto before = [&](ChainRun& run, int step) {
    if (way == 4) run.model.layers[0]->bias.set_trainable(step == 2);
    if (way == 4) run.model.layers[1]->weight.set_trainable(false);
    if (way != 5) return;
    const NoSync guard(run.runtime);
    run.micro_batch(100 + step, false);
  };
  const auto flat = on_ranks(3, [&](World& world) { return trained(world, options, before); });
  for (const LayoutOptions& layout : layouts()) {
    ShardOptions other = options;
    other.layout = layout;
    CAPTURE(way, layout.min_shard_bytes);
    CHECK(on_ranks(3, [&](World& world) { return trained(world, other, before); }) == flat);
  }
}

TEST_CASE("1-4: a whole parameter has its value between uses, the same bits on every rank, and is not gathered") {
  const auto results = on_ranks(3, [](World& world) {
    ChainRun run(world, {.layout = cut(50)});
    const Parameter &bias = run.model.layers[1]->bias, &weight = run.model.layers[1]->weight;
    Arrays seen;
    std::string problem;
    for (int step = 1; step <= 3; ++step) {
      run.device->synchronize();
      seen.push_back(values_of(bias));
      if (message_of([&] { values_of(weight); }).find("layer1.weight is used while it is not unsharded") ==
          std::string::npos)
        problem = "a sharded parameter has a value between uses";
      run.micro_batch(step);
      run.optimizer->step(1e-1f, step);
    }
    run.device->synchronize();
    seen.push_back(values_of(bias));
    if (run.weights()[4] != seen.back()) problem = "the value is not the weight";
    const UnitLayout& layout = *run.runtime.executor().units()[2].layout;
    if (layout.gathered_elems() != 3 * 48)
      problem = "more is gathered than four rows of the matrix, in lines of 64 bytes";
    return std::pair(seen, problem);
  });
  for (const auto& [seen, problem] : results) {
    CHECK(problem == "");
    CHECK(seen == results.front().first);
  }
  const Arrays& seen = results.front().first;
  CHECK(seen[0] == std::vector<float>(kChainWidth, 0.125f));
  CHECK(seen[1] != seen[0]);
  CHECK(seen[3] != seen[2]);
}

TEST_CASE("I7: an abandoned micro-batch leaves a runtime of either layout ready for the next") {
  const auto abandon = [](ChainRun& run, int step) {
    if (step == 1) return;
    run.runtime.begin_micro_batch(Mode::train, true);
    const Tensor loss = run.model.loss(chain_input(run.context, 5), chain_targets(run.context));
    if (step == 3) backward(loss);
    run.runtime.abandon();
  };
  const auto undisturbed = on_ranks(2, [](World& world) { return trained(world, {}); });
  for (const LayoutOptions& layout : layouts())
    CHECK(on_ranks(2, [&](World& world) { return trained(world, {.layout = layout}, abandon); }) == undisturbed);
}

TEST_CASE("1-6: what an inner unit owns an outer one leaves alone, and a module in several places is sharded once") {
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  const auto owned = [&](Units units) {
    Sharing model;
    ShardedRuntime runtime(context, *world, {.layout = cut()});
    shard_module(model, runtime, units);
    std::string text;
    for (const FlatParameter& unit : runtime.executor().units()) {
      text += unit.name + ":";
      for (const Parameter* parameter : unit.parameters) text += " " + parameter->name();
      text += "; ";
    }
    return text;
  };
  CHECK(owned(Units::block) ==
        "root: outer.own; layer0: layer0.weight layer0.bias; layer1: layer1.weight layer1.bias; ");
  CHECK(owned(Units::model) == "root: layer0.weight layer0.bias layer1.weight layer1.bias outer.own; ");
}

TEST_CASE(
    "I5: ranks that cut a parameter on different dims are stopped before the optimizer's step, even where all sizes "
    "agree") {
  const auto messages = on_ranks(2, [](World& world) {
    LayoutOptions layout = cut();
    if (world.rank() == 1)
      layout.dim = [](std::string_view name, const Shape&) { return name == "layer2.weight" ? 1 : 0; };
    ChainRun run(world, {.layout = layout});
    return message_of([&] {
      try {
        run.micro_batch(0);
        run.optimizer->step(1e-2f, 1);
        run.device->synchronize();
      } catch (const OrderMismatch& mismatch) {
        throw mismatch;
      }
    });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("in step 1, unit layer2, names and shapes of its parameters, and where they are cut: "
                                 "rank 1 differs from rank 0"));
}

}  // namespace zs::test::per_parameter_test
