// What a user switches of single units, and what is a user's own of what moves their data.
#include <catch2/catch.hpp>

#include <algorithm>

#include "model/sharding/fully_shard.h"
#include "runtime/device/step_verifier.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::switches_test {
namespace {

struct Table : Module {
  Table() : Module("table"), rows(add_parameter("rows", {13, kChainWidth}, {.normal_std = 0.5f}, true)) {}
  bool is_block() const override { return true; }
  Tensor forward(const Tensor& ids) {
    const ForwardScope scope = enter();
    return embedding(ids, rows, nullptr);
  }
  Parameter& rows;
};

struct Net : Module {
  Net()
      : Module(""),
        layer("layer"),
        head(add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)) {
    add_child(table);
    add_child(layer);
  }
  Tensor loss(const Tensor& ids, const Tensor& targets) {
    const ForwardScope scope = enter();
    const Tensor y = layer.forward(table.forward(ids).reshape({kChainRows, kChainWidth}));
    return lm_head_loss(y, head, targets, kChainWidth);
  }
  Table table;
  ChainLayer layer;
  Parameter& head;
};

struct Looked {
  std::vector<std::vector<float>> weights;
  std::ptrdiff_t gathers = 0, kept = 0;  // of the table's unit, in the last step; secondary shards
};

/// Three steps of two micro-batches, in which one module's unit is not gathered for its backward; none: all are.
Looked train(World& world, const SchemeOptions& scheme, const std::string& left_out) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Net net;
  ShardedModel model = fully_shard(
      net, context, world,
      {.shard = {.scheme = scheme, .schedule = {.keep_root_unsharded = false}, .seed = 3, .zero_copy = false}});
  if (left_out == "table") model.set_unshard_in_backward(net.table, false);
  if (left_out == "layer") model.set_unshard_in_backward(net.layer, false);
  AdamW optimizer(model.executor(), {});
  StepVerifier verifier(*device);
  Looked looked;
  for (int step = 0; step < 3; ++step) {
    std::vector<Action> actions;
    model.runtime().log_actions(&actions);
    for (const bool is_last : {false, true}) {
      const Tensor ids =
          Tensor::from_host(context, {1, kChainRows}, std::vector<std::int32_t>{1, 12, 3, 3, world.rank(), step});
      MicroBatch micro_batch = model.micro_batch({.last = is_last});
      micro_batch.backward(net.loss(ids, chain_targets(context)));
    }
    model.runtime().log_actions(nullptr);
    optimizer.step(0.01f);
    device->synchronize();
    verifier.check(fmt::format("step {}", step));
    const int unit = model.unit_of(net.table);
    looked.gathers = std::count_if(actions.begin(), actions.end(), [&](const Action& action) {
      return action.unit == unit &&
             (action.kind == Action::Kind::gather || action.kind == Action::Kind::two_level_gather ||
              action.kind == Action::Kind::gather_secondary);
    });
    looked.kept = std::count(actions.begin(), actions.end(), Action{Action::Kind::keep_secondary_shard, unit});
  }
  for (int unit = 0; unit < model.runtime().scheduler().size(); ++unit) {
    model.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
      looked.weights.emplace_back(values, values + parameter.numel());
    });
  }
  return looked;
}

}  // namespace

TEST_CASE("2B-24: a unit whose backward has no need of its parameters is not gathered for it") {
  const std::string name = GENERATE("zero3", "hsdp", "nested", "zero3 k");
  const SchemeOptions scheme = scheme_of(name, 4);
  const auto usual = on_ranks(4, [&](World& world) { return train(world, scheme, ""); });
  const auto without = on_ranks(4, [&](World& world) { return train(world, scheme, "table"); });
  CHECK(without[0].weights == usual[0].weights);
  CHECK(usual[0].gathers == 4);
  CHECK(without[0].gathers == 2);
  if (name == "zero3 k") CHECK(usual[0].kept == 2);
  if (name == "zero3 k") CHECK(without[0].kept == 0);  // a shard for a backward that does without
}

TEST_CASE("2B-24: an op that needs them all the same is refused by name") {
  CHECK_THAT(message_of([] { on_ranks(2, [](World& world) { return train(world, {}, "layer").gathers; }); }),
             Catch::Contains("layer.weight") && Catch::Contains("set_unshard_in_backward(true)"));
}

TEST_CASE("2B-24: gathers wait for masters that somebody writes on a stream of their own") {
  const bool on_host = GENERATE(false, true);  // from where they come on the stream offload
  const auto weights = on_ranks(2, [=](World& world) {
    ChainRun run(world, {.zero_copy = false, .residence = {.has_masters_on_host = on_host}});
    StepVerifier verifier(*run.device);
    run.micro_batch(0);
    run.optimizer->step(0.0f);
    Stream& own = run.device->stream(on_host ? StreamRole::finish : StreamRole::offload);
    Event compute_done, written;
    run.context.stream().record(compute_done);
    own.wait(compute_done);
    for (const FlatParameter& unit : run.runtime.executor().units()) {
      const Buffer master = unit.master_buffer();
      own.enqueue({"fill", {}, {master}},
                  [master](ExecContext&) { std::fill_n(master.as<float>(), master.elems, 0.25f); });
    }
    own.record(written);
    run.runtime.executor().masters_updated(written);
    run.runtime.begin_micro_batch(Mode::eval, true);
    std::vector<float> met;
    {
      const ForwardScope scope(&run.runtime, 0);
      run.device->synchronize();
      const Buffer head = run.model.head.value();
      met.assign(head.as<float>(), head.as<float>() + head.elems);
    }
    run.runtime.end_micro_batch();
    verifier.check("the evaluation");
    return met;
  });
  for (const auto& met : weights) CHECK(met == std::vector<float>(kChainWidth * kChainWidth, 0.25f));
}

TEST_CASE("2B-24: communicators of one's own take the place of the world's") {
  const std::string name = GENERATE("zero3", "hsdp", "nested");
  const SchemeOptions scheme = scheme_of(name, 4);
  const auto weights = [&](World& world, bool replaces, std::int64_t& sent) {
    std::vector<std::shared_ptr<Communicator>> own, usual;
    ShardOptions options{.scheme = scheme, .zero_copy = false};
    if (replaces)
      options.replace_group = [&](GroupRole, std::shared_ptr<Communicator> made) {
        usual.push_back(made);
        own.push_back(made->split(0, made->rank()));
        return own.back();
      };
    ChainRun run(world, options);
    for (int step = 0; step < 2; ++step) {
      run.micro_batch(step);
      run.optimizer->step(0.01f);
    }
    auto found = run.weights();
    for (const auto& group : own) sent += group->traffic().sent_bytes();
    for (const auto& group : usual) sent -= 1000 * group->traffic().sent_bytes();
    return found;
  };
  std::vector<std::int64_t> sent(4);
  const auto usual = on_ranks(4, [&](World& world) {
    std::int64_t none = 0;
    return weights(world, false, none);
  });
  const auto own =
      on_ranks(4, [&](World& world) { return weights(world, true, sent[static_cast<std::size_t>(world.rank())]); });
  CHECK(own == usual);
  for (const std::int64_t bytes : sent) CHECK(bytes > 0);
}

TEST_CASE("2B-24: a communicator of other ranks takes nobody's place") {
  const bool is_null = GENERATE(false, true);
  const std::string message = message_of([&] {
    on_ranks(2, [&](World& world) {
      ShardOptions options;
      options.replace_group = [&](GroupRole, std::shared_ptr<Communicator> made) {
        return is_null ? nullptr : std::shared_ptr<Communicator>(made->split(made->rank(), 0));
      };
      const ChainRun run(world, options);
      return 0;
    });
  });
  CHECK_THAT(message, Catch::Contains("replace_group put") && Catch::Contains(is_null ? "nothing" : "rank 0 of 1") &&
                          Catch::Contains("of 2"));
}

}  // namespace zs::test::switches_test
