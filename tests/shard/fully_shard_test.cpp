// One call that shards a model, and what of it is forgotten or done twice.
#include "model/sharding/fully_shard.h"

#include <catch2/catch.hpp>

#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/recompute.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/link_net.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/scheme_cases.h"
#include "tests/stderr_of.h"

namespace zs::test::fully_shard_test {
namespace {

using Catch::Contains;
using Catch::Equals;
using Kind = Action::Kind;

/// Two steps of two micro-batches; their norm is not clipped, as its sum depends on the units.
Weights train(LinkRank& rank, ShardedModel& model) {
  AdamW optimizer(model.executor(), {.clip = 0});
  for (int i = 0; i < 4; ++i) {
    {
      auto micro_batch = model.micro_batch({.last = i % 2 == 1});
      const Tensor loss = rank.loss(i);
      if (i == 0) loss.backward();
      if (i == 1) backward(loss);
      if (i > 1) micro_batch.backward(loss);
      if (i == 3) micro_batch.end();
    }
    if (i % 2 == 1) optimizer.step(1e-2f);
  }
  return weights_of(model.executor());
}

}  // namespace

TEST_CASE("one call shards a model whose code says nothing of it, nested, to the bits of one unit, in every scheme") {
  for (const std::string& name : scheme_names()) {
    for (const int prefetch : {0, 2}) {
      CAPTURE(name, prefetch);
      const auto run = [&](bool has_units) {
        return on_ranks(4, [&](World& world) {
          LinkRank rank(world, 2);
          if (has_units) {
            // Children before parents; link1 stays with the root, and the innermost of link2 with that one's inner
            // link.
            fully_shard(*rank.net.links[0].inner->inner);
            fully_shard(*rank.net.links[0].inner);
            fully_shard(rank.net.links[0]);
            fully_shard(*rank.net.links[2].inner);
            fully_shard(rank.net.links[2]);
          }
          ShardedModel model =
              rank.shard({.shard = {.scheme = scheme_of(name, 4), .schedule = {.prefetch = prefetch}, .seed = 5}});
          return std::pair(units_of(model.executor()), train(rank, model));
        });
      };
      const auto nested = run(true), whole = run(false);
      CHECK(nested[0].first ==
            "root: head link1.weight link1.bias; link0: link0.weight link0.bias; link0.inner: link0.inner.weight "
            "link0.inner.bias; "
            "link0.inner.inner: link0.inner.inner.weight link0.inner.inner.bias; link2: link2.weight link2.bias; "
            "link2.inner: link2.inner.weight link2.inner.bias link2.inner.inner.weight link2.inner.inner.bias; ");
      for (std::size_t rank = 0; rank < nested.size(); ++rank) CHECK((nested[rank].second == whole[0].second));
    }
  }
}

TEST_CASE("units nested in others are gathered for their own forward, and every access is ordered, recomputed or not") {
  const auto outcomes = on_ranks(2, [](World& world) {
    std::array<Weights, 2> weights;
    std::string violation;
    for (const bool recomputes : {false, true}) {
      LinkRank rank(world, 1);
      for (Link& link : rank.net.links) {
        if (link.inner) fully_shard(*link.inner);
        fully_shard(link);
      }
      ShardedModel model = rank.shard({.shard = {.seed = 5}});
      AdamW optimizer(model.executor(), {});
      rank.device->trace().start();
      for (int step = 0; step < 3; ++step) {
        {
          auto micro_batch = model.micro_batch();
          const ForwardScope scope(&model.runtime(), 0);
          const auto link0 = [&](const std::vector<Tensor>& in) { return rank.net.links[0](in[0]); };
          const Tensor x = linear(chain_input(rank.context, step * 8 + world.rank()), rank.net.head, nullptr);
          const Tensor y = recomputes ? recompute({x}, link0) : link0({x});
          micro_batch.backward(lm_head_loss(y, rank.net.head, chain_targets(rank.context), kChainWidth));
        }
        optimizer.step(1e-2f);
      }
      rank.device->synchronize();
      const auto violations = verify_order(rank.device->trace().entries());
      if (!violations.empty()) violation = violations.front().message;
      weights[recomputes ? 1 : 0] = weights_of(model.executor());
    }
    return std::pair(weights[0] == weights[1], violation);
  });
  for (const auto& [are_same, violation] : outcomes) {
    CHECK(are_same);
    CHECK(violation == "");
  }
}

TEST_CASE("modules that say is_block() are units where none was given to fully_shard") {
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}});
  Context context(*device);
  Chain chain;
  ShardedModel model = fully_shard(chain, context, *world);
  CHECK(model.runtime().names() == std::vector<std::string>{"root", "layer0", "layer1", "layer2"});
  CHECK(model.unit_of(*chain.layers[1]) == 2);
}

TEST_CASE("a policy is a module's own, or goes by the path of its unit") {
  const auto reshards = on_ranks(4, [](World& world) {
    LinkRank rank(world);
    fully_shard(rank.net.links[0], {.reshard_after_forward = Reshard::over(2)});
    fully_shard(rank.net.links[1]);
    fully_shard(rank.net.links[2]);
    ShardedModel model =
        rank.shard({.policies = {{"root", {.scheme = SchemeOptions{.strategy = Strategy::zero2}}},
                                 {"link1", {.scheme = SchemeOptions{.strategy = Strategy::ddp}}},
                                 {"link*", {.scheme = SchemeOptions{.strategy = Strategy::hsdp, .group_size = 2}}}}});
    std::vector<std::string> schemes;
    for (const FlatParameter& unit : model.executor().units())
      schemes.push_back(fmt::format("{} {}", unit.placement->scheme.name(),
                                    unit.placement->scheme.options().reshard_after_forward.str()));
    return schemes;
  });
  CHECK(reshards[3] == std::vector<std::string>{"zero2 false", "zero3 2", "ddp false", "hsdp true"});
}

TEST_CASE("a sharded model can be sharded again when the first one is gone") {
  const auto world = make_single_world({.timeout_s = 60});
  LinkRank rank(*world);
  for (Link& link : rank.net.links) fully_shard(link);
  const auto once = [&] {
    ShardedModel model = rank.shard({.shard = {.seed = 3}});
    return train(rank, model);
  };
  CHECK((once() == once()));
  CHECK_THAT(message_of([&] { rank.loss(0); }),
             Contains("fully_shard was called for module \"link0\"") || Contains("parameter head is used"));
}

TEST_CASE("what is forgotten or done twice with fully_shard is an error that names it") {
  CHECK_THAT(problem([](LinkRank& rank, ShardedModel&) { fully_shard(rank.net.links[0]); }),
             Contains("module \"link0\" belongs to a model that is sharded already"));
  CHECK_THAT(problem([](LinkRank& rank, ShardedModel&) { rank.shard(); }), Contains("the model is sharded already"));
  CHECK_THAT(problem([](LinkRank&, ShardedModel& model) { model.unit_of(LinkNet()); }),
             Contains("is no part of this sharded model"));
  CHECK_THAT(problem([](LinkRank& rank, ShardedModel&) { rank.loss(0); }),
             Contains("unit root cannot run forward outside a micro-batch"));
  const auto world = make_single_world({.timeout_s = 60});
  LinkRank rank(*world);
  fully_shard(rank.net.links[1]);
  CHECK_THAT(message_of([&] { fully_shard(rank.net.links[1]); }),
             Contains("fully_shard was called twice for module \"link1\""));
  CHECK_THAT(message_of([&] { rank.net.links[1](chain_input(rank.context, 0)); }),
             Contains("fully_shard was called for module \"link1\", but not for the model that contains it"));
  CHECK_THAT(message_of([&] {
               rank.shard({.policies = {{"block*", {}}}});
             }),
             Contains("no unit has a path like \"block*\"") && Contains("root, link1"));
  ShardedModel model = rank.shard();  // what was refused has left nothing behind
  CHECK(model.runtime().names() == std::vector<std::string>{"root", "link1"});
}

TEST_CASE("what is forgotten or done twice in a micro-batch is an error that names it, and another can begin") {
  const auto check = [](const std::function<void(LinkRank & rank, ShardedModel & model)>& body,
                        const std::string& text) {
    CAPTURE(text);
    const std::string message = problem([&](LinkRank& rank, ShardedModel& model) {
      const std::string said = message_of([&] { body(rank, model); });
      auto micro_batch = model.micro_batch();
      micro_batch.backward(rank.loss(0));
      micro_batch.end();
      throw Error(ExitCode::internal, said);
    });
    CHECK_THAT(message, Contains(text));
  };
  check(
      [](LinkRank& rank, ShardedModel& model) {
        const auto micro_batch = model.micro_batch();
        rank.loss(0);
      },
      "the micro-batch ends without a backward");
  check([](LinkRank&, ShardedModel& model) { const auto micro_batch = model.micro_batch(); },
        "the micro-batch ends without a backward");
  check([](LinkRank&, ShardedModel& model) { const auto first = model.micro_batch(), second = model.micro_batch(); },
        "a micro-batch begins while another is already running");
  check(
      [](LinkRank& rank, ShardedModel& model) {
        auto micro_batch = model.micro_batch();
        const Tensor loss = rank.loss(0);
        micro_batch.backward(loss);
        micro_batch.backward(loss);
      },
      "backward");
  check(
      [](LinkRank& rank, ShardedModel& model) {
        auto micro_batch = model.micro_batch();
        micro_batch.backward(rank.loss(0));
        micro_batch.end();
        micro_batch.end();
      },
      "a micro-batch is ended twice");
  check(
      [](LinkRank& rank, ShardedModel& model) {
        auto micro_batch = model.micro_batch();
        const Tensor loss = rank.loss(0);
        micro_batch.backward(loss);
        micro_batch.end();
        micro_batch.backward(loss);
      },
      "backward() behind the end of its micro-batch");
  check(
      [](LinkRank& rank, ShardedModel& model) {
        const auto evaluation = model.evaluation();
        backward(rank.loss(0));
      },
      "gradient");
  check(
      [](LinkRank& rank, ShardedModel& model) {
        const auto micro_batch = model.micro_batch();
        rank.loss(0);
        throw Error(ExitCode::internal, "thrown in forward");
      },
      "thrown in forward");
}

TEST_CASE("a micro-batch that was never the last is what the optimizer's step says was forgotten") {
  CHECK_THAT(problem([](LinkRank& rank, ShardedModel& model) {
               AdamW optimizer(model.executor(), {});
               model.micro_batch({.last = false}).backward(rank.loss(0));
               optimizer.step(1e-2f);
             }),
             Contains("before the step's last micro-batch"));
}

TEST_CASE("an exception in a micro-batch that had added to earlier ones' gradients drops the step, and says so") {
  const auto world = make_single_world({.timeout_s = 60});
  LinkRank rank(*world);
  ShardedModel model = rank.shard({.shard = {.scheme = {.reduce_every_micro_batch = false}}});
  model.micro_batch({.last = false}).backward(rank.loss(0));
  const std::string said = stderr_of([&] {
    CHECK_THAT(message_of([&] {
                 auto micro_batch = model.micro_batch();
                 micro_batch.backward(rank.loss(1));
                 throw Error(ExitCode::internal, "behind the backward");
               }),
               Contains("behind the backward"));
  });
  CHECK_THAT(said, Contains("all gradients of the step are dropped"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("a scope of a module without parameters of its own has the units below it, and not the one around it") {
  struct List : Module {
    explicit List(std::string path) : Module(std::move(path)) {}
    ChainLayer& add() { return make_child<ChainLayer>(std::to_string(children().size())); }
  };
  struct Net : Module {
    Net() : Module(""), head(add_parameter("head", {8, 8}, {}, true)), list(make_child<List>("list")) {
      list.add(), list.add();
    }
    Parameter& head;
    List& list;
    List& empty = make_child<List>("empty");
    struct Tower : Module {
      explicit Tower(std::string path) : Module(std::move(path)), blocks(make_child<List>("blocks")) { blocks.add(); }
      List& blocks;
      Parameter& scale = add_parameter("scale", {8}, {}, true);
    };
    Tower& tower = make_child<Tower>("tower");  // a part of the root
  };
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Net net;
  ShardedRuntime runtime(context, *world, {});
  shard_module(net, runtime, Units::block);
  const auto units = [&](const Module& module, bool recurse) {
    return UnshardScope(runtime, module, {.recurse = recurse, .writes_back = false}).units();
  };
  for (const bool recurse : {true, false}) {
    CAPTURE(recurse);
    CHECK(units(net.list, recurse) == std::vector{1, 2});
    CHECK(units(net.empty, recurse) == std::vector<int>{});
    CHECK(units(*net.list.children().back(), recurse) == std::vector{2});
  }
  CHECK(units(net.tower, true) == std::vector{0, 3});
  CHECK(units(net.tower, false) == std::vector{0});
  CHECK(units(net, true) == std::vector{0, 1, 2, 3});
  CHECK(units(net, false) == std::vector{0});
}

}  // namespace zs::test::fully_shard_test
