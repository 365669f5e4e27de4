// One call that shards a model, and what of it is forgotten or done twice.
#include "model/fully_shard.h"

#include <catch2/catch.hpp>

#include <array>
#include <map>

#include "runtime/tensor/recompute.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/stderr_of.h"

namespace zs::test {
namespace {

using Catch::Contains;
using Catch::Equals;
using Kind = Action::Kind;
using Weights = std::map<std::string, std::vector<float>>;

/// As ChainLayer, but that it is called, and may hold another such layer in its middle.
struct Link : Layer<Link> {
  explicit Link(const std::string& path, int depth = 0)
      : Layer(path),
        weight(add_parameter("weight", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)),
        bias(add_parameter("bias", {kChainWidth}, {.constant = 0.125f}, false)) {
    if (depth > 0) inner = std::make_unique<Link>(path + ".inner", depth - 1);
    if (inner) add_child(*inner);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = output(gelu(linear(input(x), weight, &bias), GeluKind::tanh));
    return add(x, inner ? (*inner)(y) : y);
  }
  Parameter &weight, &bias;
  std::unique_ptr<Link> inner;
};

struct Net : Layer<Net> {
  explicit Net(int depth = 0) : links{Link("link0", depth), Link("link1"), Link("link2", depth)} {
    for (Link& link : links) add_child(link);
  }
  Tensor forward(const Tensor& x, const Tensor& targets) {
    Tensor y = linear(x, head, nullptr);
    for (Link& link : links) y = link(y);
    return lm_head_loss(input(y), head, targets, kChainWidth);
  }
  Parameter& head = add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true);
  std::array<Link, 3> links;
};

/// A rank with a model that is not sharded yet.
struct Rank {
  explicit Rank(World& of, int depth = 0)
      : world(of),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        net(depth) {}

  Tensor loss(int sample) { return net(chain_input(context, sample * 8 + world.rank()), chain_targets(context)); }
  ShardedModel shard(const FullyShardOptions& options = {}) {
    FullyShardOptions asked = options;
    asked.shard = in_tests(options.shard);
    return fully_shard(net, context, world, asked);
  }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  Net net;
};

std::string units_of(ShardedModel& model) {
  std::string text;
  for (const FlatParameter& unit : model.executor().units()) {
    text += unit.name + ":";
    for (const Parameter* parameter : unit.parameters) text += " " + parameter->name();
    text += "; ";
  }
  return text;
}

Weights weights_of(ShardedModel& model) {
  Weights weights;
  for (int unit = 0; unit < std::ssize(model.executor().units()); ++unit) {
    model.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
      weights[parameter.name()].assign(values, values + parameter.numel());
    });
  }
  return weights;
}

/// Two steps of two micro-batches; their norm is not clipped, as its sum depends on the units.
Weights train(Rank& rank, ShardedModel& model) {
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
  return weights_of(model);
}

/// What `body` throws on one rank, behind a model of three units and its root.
std::string problem(const std::function<void(Rank& rank, ShardedModel& model)>& body) {
  const auto world = make_single_world({.timeout_s = 60});
  Rank rank(*world);
  for (Link& link : rank.net.links) fully_shard(link);
  ShardedModel model = rank.shard();
  return message_of([&] { body(rank, model); });
}

}  // namespace

TEST_CASE("one call shards a model whose code says nothing of it, nested, to the bits of one unit, in every scheme") {
  for (const std::string& name : scheme_names()) {
    for (const int prefetch : {0, 2}) {
      CAPTURE(name, prefetch);
      const auto run = [&](bool has_units) {
        return on_ranks(4, [&](World& world) {
          Rank rank(world, 2);
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
          return std::pair(units_of(model), train(rank, model));
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
      Rank rank(world, 1);
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
      weights[recomputes ? 1 : 0] = weights_of(model);
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
    Rank rank(world);
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
  Rank rank(*world);
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
  CHECK_THAT(problem([](Rank& rank, ShardedModel&) { fully_shard(rank.net.links[0]); }),
             Contains("module \"link0\" belongs to a model that is sharded already"));
  CHECK_THAT(problem([](Rank& rank, ShardedModel&) { rank.shard(); }), Contains("the model is sharded already"));
  CHECK_THAT(problem([](Rank&, ShardedModel& model) { model.unit_of(Net()); }),
             Contains("is no part of this sharded model"));
  CHECK_THAT(problem([](Rank& rank, ShardedModel&) { rank.loss(0); }),
             Contains("unit root cannot run forward outside a micro-batch"));
  const auto world = make_single_world({.timeout_s = 60});
  Rank rank(*world);
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
  const auto check = [](const std::function<void(Rank & rank, ShardedModel & model)>& body, const std::string& text) {
    CAPTURE(text);
    const std::string message = problem([&](Rank& rank, ShardedModel& model) {
      const std::string said = message_of([&] { body(rank, model); });
      auto micro_batch = model.micro_batch();
      micro_batch.backward(rank.loss(0));
      micro_batch.end();
      throw Error(ExitCode::internal, said);
    });
    CHECK_THAT(message, Contains(text));
  };
  check(
      [](Rank& rank, ShardedModel& model) {
        const auto micro_batch = model.micro_batch();
        rank.loss(0);
      },
      "the micro-batch ends without a backward");
  check([](Rank&, ShardedModel& model) { const auto micro_batch = model.micro_batch(); },
        "the micro-batch ends without a backward");
  check([](Rank&, ShardedModel& model) { const auto first = model.micro_batch(), second = model.micro_batch(); },
        "a micro-batch begins while another is already running");
  check(
      [](Rank& rank, ShardedModel& model) {
        auto micro_batch = model.micro_batch();
        const Tensor loss = rank.loss(0);
        micro_batch.backward(loss);
        micro_batch.backward(loss);
      },
      "backward");
  check(
      [](Rank& rank, ShardedModel& model) {
        auto micro_batch = model.micro_batch();
        micro_batch.backward(rank.loss(0));
        micro_batch.end();
        micro_batch.end();
      },
      "a micro-batch is ended twice");
  check(
      [](Rank& rank, ShardedModel& model) {
        auto micro_batch = model.micro_batch();
        const Tensor loss = rank.loss(0);
        micro_batch.backward(loss);
        micro_batch.end();
        micro_batch.backward(loss);
      },
      "backward() behind the end of its micro-batch");
  check(
      [](Rank& rank, ShardedModel& model) {
        const auto evaluation = model.evaluation();
        backward(rank.loss(0));
      },
      "gradient");
  check(
      [](Rank& rank, ShardedModel& model) {
        const auto micro_batch = model.micro_batch();
        rank.loss(0);
        throw Error(ExitCode::internal, "thrown in forward");
      },
      "thrown in forward");
}

TEST_CASE("a micro-batch that was never the last is what the optimizer's step says was forgotten") {
  CHECK_THAT(problem([](Rank& rank, ShardedModel& model) {
               AdamW optimizer(model.executor(), {});
               model.micro_batch({.last = false}).backward(rank.loss(0));
               optimizer.step(1e-2f);
             }),
             Contains("before the step's last micro-batch"));
}

TEST_CASE("an exception in a micro-batch that had added to earlier ones' gradients drops the step, and says so") {
  const auto world = make_single_world({.timeout_s = 60});
  Rank rank(*world);
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

TEST_CASE("1-27, 2B-23: each switch of a unit changes what is done of that unit alone, from the next micro-batch on") {
  const auto counts = on_ranks(4, [](World& world) {
    Rank rank(world);
    for (Link& link : rank.net.links) fully_shard(link);
    ShardedModel model = rank.shard(
        {.shard = {.scheme = {.strategy = Strategy::hsdp, .group_size = 2, .all_reduce_every_micro_batch = true},
                   .schedule = {.prefetch = 1, .keep_root_unsharded = false},
                   .zero_copy = false}});
    AdamW optimizer(model.executor(), {});
    std::string text;
    const auto run = [&](bool is_last) {
      auto micro_batch = model.micro_batch({.last = is_last});
      micro_batch.backward(rank.loss(1));
      micro_batch.end();
      for (int unit = 0; unit < 4; ++unit) {
        const auto& actions = model.runtime().actions();
        const auto count = [&](Kind kind) { return std::count(actions.begin(), actions.end(), Action{kind, unit}); };
        text += fmt::format("{}{}{} ", count(Kind::gather), count(Kind::reduce), count(Kind::finish));
      }
      text += "; ";
    };
    const Module& one = rank.net.links[1];
    run(false);
    model.set_requires_gradient_sync(one, false);
    run(false);
    model.set_requires_gradient_sync(one, true);
    model.set_requires_all_reduce(one, false);
    run(false);
    model.set_requires_all_reduce(one, true);
    model.set_reshard_after_forward(one, false);
    run(false);
    model.set_reshard_after_forward(one, true);
    model.set_reshard_after_backward(one, false);
    run(false);
    run(false);
    model.set_reshard_after_backward(rank.net, true);
    model.set_reshard_after_forward(rank.net, false);
    run(true);
    return text;
  });
  // Of each unit: gathers, reductions, second steps. What stays behind a backward is there for the next forward.
  CHECK(counts[0] ==
        "211 211 211 211 ; 211 211 200 211 ; 211 211 210 211 ; 211 211 111 211 ; 211 211 211 211 ; 211 211 111 211 ; "
        "111 111 011 111 ; ");
  for (const std::string& text : counts) CHECK(text == counts[0]);
}

TEST_CASE(
    "1-27, 2B-23: switches that change between micro-batches train to the same bits, in every scheme that has them") {
  for (const std::string name : {"zero3", "zero3 k", "zero2", "hsdp", "hsdp small each", "hsdp k", "nested", "ddp"}) {
    CAPTURE(name);
    const auto run = [&](bool switches) {
      return on_ranks(4, [&](World& world) {
        Rank rank(world, 1);
        for (Link& link : rank.net.links) fully_shard(link);
        SchemeOptions scheme = scheme_of(name, 4);
        scheme.deterministic = name == std::string("zero3");
        ShardedModel model = rank.shard({.shard = {.scheme = scheme, .seed = 7}});
        AdamW optimizer(model.executor(), {.clip = 0});
        rank.device->trace().start();
        for (int i = 0; i < 12; ++i) {
          const bool is_last = i % 4 == 3;
          if (switches) {
            for (std::size_t link = 0; link < 3; ++link) {
              const bool is_odd = (static_cast<std::size_t>(i) + link) % 2 == 1;
              model.set_requires_all_reduce(rank.net.links[link], is_last || is_odd);
              model.set_reshard_after_backward(rank.net.links[link], is_odd);
              if (scheme.strategy != Strategy::zero2 && scheme.strategy != Strategy::ddp)
                model.set_reshard_after_forward(rank.net.links[link], !is_odd);
            }
          }
          // Sums of powers of two, so that where they are rounded says nothing.
          auto micro_batch = model.micro_batch({.last = is_last});
          micro_batch.backward(rank.loss(i % 4));
          micro_batch.end();
          if (is_last) optimizer.step(1e-2f);
        }
        rank.device->synchronize();
        const auto violations = verify_order(rank.device->trace().entries());
        return std::pair(weights_of(model), violations.empty() ? std::string() : violations.front().message);
      });
    };
    const auto with = run(true), without = run(false);
    for (std::size_t rank = 0; rank < with.size(); ++rank) {
      CHECK(with[rank].second == "");
      for (const auto& [parameter, values] : with[rank].first)
        for (std::size_t i = 0; i < values.size(); ++i)
          CHECK(values[i] == Approx(without[rank].first.at(parameter)[i]).epsilon(1e-4).margin(1e-6));
    }
  }
}

TEST_CASE("1-27: gradients of a unit that is not reduced go on to the step that reduces it") {
  const auto norms = on_ranks(2, [](World& world) {
    const auto gradient = [&](bool is_split) {
      Rank rank(world);
      for (Link& link : rank.net.links) fully_shard(link);
      ShardedModel model = rank.shard({.shard = {.zero_copy = false}});
      if (is_split) model.set_requires_gradient_sync(rank.net.links[0], false);
      for (int i = 0; i < 2; ++i) {
        if (i == 1) model.set_requires_gradient_sync(rank.net.links[0], true);
        model.micro_batch({.last = i == 1}).backward(rank.loss(i));
      }
      model.executor().wait_reductions();
      rank.device->synchronize();
      const Buffer grad = model.executor().units()[1].grad_buffer();
      return std::vector<float>(grad.as<float>(), grad.as<float>() + grad.elems);
    };
    return std::pair(gradient(true), gradient(false));
  });
  for (const auto& [split, each] : norms) {
    CHECK(split.size() == each.size());
    for (std::size_t i = 0; i < split.size(); ++i) CHECK(split[i] == Approx(each[i]).epsilon(1e-5).margin(1e-7));
  }
}

TEST_CASE("1-27: a switch within a micro-batch, and a last one without its all-reduce, are errors that name them") {
  const auto messages = on_ranks(4, [](World& world) {
    Rank rank(world);
    for (Link& link : rank.net.links) fully_shard(link);
    ShardedModel model = rank.shard({.shard = {.scheme = {.strategy = Strategy::hsdp, .group_size = 2}}});
    model.set_requires_all_reduce(rank.net.links[2], false);
    std::vector<std::string> said{message_of([&] { const auto micro_batch = model.micro_batch(); })};
    auto micro_batch = model.micro_batch({.last = false});
    said.push_back(message_of([&] { model.set_requires_gradient_sync(rank.net.links[2], false); }));
    said.push_back(message_of([&] { model.set_reshard_after_backward(rank.net, false); }));
    micro_batch.backward(rank.loss(0));
    return said;
  });
  for (const auto& said : messages) {
    CHECK_THAT(said[0], Contains("unit link2 is without its all-reduce in the step's last micro-batch"));
    CHECK_THAT(said[1], Contains("set_requires_gradient_sync() within a micro-batch"));
    CHECK_THAT(said[2], Contains("set_reshard_after_backward() within a micro-batch"));
  }
  CHECK_THAT(problem([](Rank& rank, ShardedModel& model) { model.set_reshard_after_forward(rank.net.links[0], true); }),
             Equals(""));
}

}  // namespace zs::test
