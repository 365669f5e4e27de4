// What single units do otherwise than the rest, and units without parameters.
#include <catch2/catch.hpp>

#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/step_model.h"

namespace zs::test::unit_policy_test {
namespace {

using Catch::Contains;
using Kind = Action::Kind;
using AfterForward = Scheduler::AfterForward;
using Arrays = std::vector<std::vector<float>>;

constexpr int kRanks = 4;

/// By the unit: root, layer0, layer1, layer2.
using Policies = std::vector<std::optional<Reshard>>;

auto shard_by(const Policies& policies) {
  return [policies](Chain& chain, ShardedRuntime& runtime) {
    std::size_t next = 0;
    shard_module(chain, runtime, Units::block, {}, [&](const Module&) {
      return UnitPolicy{.reshard_after_forward = next < policies.size() ? policies[next++] : std::nullopt};
    });
  };
}

struct Outcome {
  Arrays weights;
  std::vector<std::array<std::ptrdiff_t, 3>>
      counts;  // of each unit in the last micro-batch: gathers, small ones, kept shards
  std::string violation;
};

/// Three steps of two micro-batches.
Outcome train(World& world, const SchemeOptions& scheme, const Policies& policies) {
  ChainRun run(world, {.scheme = scheme, .schedule = {.prefetch = 1}, .seed = 3}, shard_by(policies));
  run.device->trace().start();
  for (int step = 1; step <= 3; ++step) {
    run.micro_batch(2 * step, false);
    run.micro_batch(2 * step + 1, true);
    run.optimizer->step(1e-2f, step);
  }
  run.device->synchronize();
  Outcome outcome;
  const auto violations = verify_order(run.device->trace().entries());
  if (!violations.empty()) outcome.violation = violations.front().message;
  for (int unit = 0; unit < 4; ++unit) {
    outcome.counts.push_back({run.count(Kind::gather, unit), run.count(Kind::gather_secondary, unit),
                              run.count(Kind::keep_secondary_shard, unit)});
  }
  outcome.weights = run.weights();
  return outcome;
}

std::string refusal(const SchemeOptions& scheme, const Policies& policies) {
  return on_ranks(kRanks, [&](World& world) {
    try {
      ChainRun run(world, {.scheme = scheme}, shard_by(policies));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  })[0];
}

/// A layer that has nothing to train.
struct Plain : Module {
  Plain() : Module("plain") {}
  bool is_block() const override { return true; }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    return gelu(x, GeluKind::tanh);
  }
};

/// A head, a layer, and at the end a unit without parameters; or the same work without that unit.
struct PlainEnd : Module {
  explicit PlainEnd(bool is_unit)
      : Module(""),
        layer("layer"),
        head(add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)) {
    add_child(layer);
    if (is_unit) add_child(plain);
  }
  Tensor loss(const Tensor& x, const Tensor& targets) {
    const ForwardScope scope = enter();
    return lm_head_loss(plain.forward(layer.forward(linear(x, head, nullptr))), head, targets, kChainWidth);
  }
  ChainLayer layer;
  Plain plain;
  Parameter& head;
};

/// Two steps of two micro-batches and a validation; the weights, and the first conflict.
std::pair<Arrays, std::string> train_plain_end(World& world, const SchemeOptions& scheme, bool is_unit) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  PlainEnd model(is_unit);
  ShardedRuntime runtime(context, world, {.scheme = scheme, .schedule = {.reduces_unused = true}, .seed = 3});
  shard_module(model, runtime, Units::block);
  AdamW optimizer(runtime.executor(), {});
  device->trace().start();
  const auto micro_batch = [&](Mode mode, bool is_last, int sample) {
    runtime.begin_micro_batch(mode, is_last);
    const Tensor loss = model.loss(chain_input(context, sample * kRanks + world.rank()), chain_targets(context));
    if (mode == Mode::train) backward(loss, 0.5f);
    runtime.end_micro_batch();
  };
  for (int step = 1; step <= 2; ++step) {
    micro_batch(Mode::train, false, 2 * step);
    micro_batch(Mode::train, true, 2 * step + 1);
    optimizer.step(1e-2f, step);
    const NoGradGuard no_grad(context);
    micro_batch(Mode::eval, true, 0);
  }
  device->synchronize();
  const auto violations = verify_order(device->trace().entries());
  Arrays weights;
  for (int unit = 0; unit < runtime.scheduler().size(); ++unit) {
    runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
      weights.emplace_back(values, values + parameter.numel());
    });
  }
  return {weights, violations.empty() ? "" : violations.front().message};
}

}  // namespace

TEST_CASE("a unit's own policy decides whether it stays after forward, the root's and the last unit's too") {
  Scheduler scheduler(unit_names(4), {.prefetch = 0}, {.kept = UnitSchedule::Kept::of_forward});
  run_hooks(scheduler, step_hooks(4, Mode::train, 1), Mode::train);
  scheduler.set_after_forward(0, AfterForward::free);
  scheduler.set_after_forward(1, AfterForward::stay);
  scheduler.set_after_forward(3, AfterForward::free);
  std::vector<std::string> asked;
  ActionChecker checker(4);
  for (const Hook& hook : step_hooks(4, Mode::train, 1)) {
    const auto actions = call(scheduler, hook, Mode::train);
    checker.apply(actions);
    if (!actions.empty()) asked.push_back(text_of(actions));
  }
  CHECK(asked == std::vector<std::string>{
                     "gather 0, wait_gathered 0",
                     "gather 1, wait_gathered 1",
                     "gather 2, wait_gathered 2",
                     "keep_secondary_shard 2, free_full 2",
                     "gather 3, wait_gathered 3",
                     "free_full 3",
                     "free_full 0",
                     "gather 0, wait_gathered 0, begin_gradient 0",
                     "gather 3, wait_gathered 3, begin_gradient 3",
                     "free_full 3, reduce 3",
                     "gather_secondary 2, drop_secondary_shard 2, wait_gathered 2, begin_gradient 2",
                     "free_full 2, reduce 2",
                     "begin_gradient 1",
                     "free_full 1, release_gradient 3, reduce 1",
                     "free_full 0, release_gradient 2, reduce 0",
                     "release_gradient 1, release_gradient 0",
                 });
  CHECK(checker.faults().empty());
  std::vector<std::string> validation;
  for (const Hook& hook : step_hooks(4, Mode::eval, 1)) {
    const std::string text = text_of(call(scheduler, hook, Mode::eval));
    if (hook.kind == Hook::Kind::after_forward) validation.push_back(text);
  }
  CHECK(validation ==
        std::vector<std::string>{"free_full 1", "free_full 2", "free_full 3", "free_full 0"});  // no backward follows
}

TEST_CASE("I1: units that reshard each in its own way train to the same bits, every access ordered") {
  const auto outcomes = [](const SchemeOptions& scheme, const Policies& policies) {
    return on_ranks(kRanks, [&](World& world) { return train(world, scheme, policies); });
  };
  const Outcome expected = outcomes({}, {})[0];
  const auto check = [&](const SchemeOptions& scheme, const Policies& policies,
                         const decltype(Outcome::counts)& counts) {
    CAPTURE(name_of(scheme.strategy), scheme.reshard_after_forward.str());
    for (const Outcome& outcome : outcomes(scheme, policies)) {
      CHECK(outcome.weights == expected.weights);
      CHECK(outcome.violation == "");
      CHECK(outcome.counts == counts);
    }
  };
  using Counts = decltype(Outcome::counts);
  // Root and layer0 are unsharded since the first micro-batch.
  check({}, {true, false, true, true}, Counts{{1, 0, 0}, {0, 0, 0}, {2, 0, 0}, {2, 0, 0}});
  check({.reshard_after_forward = false}, {{}, true, {}, true}, Counts{{0, 0, 0}, {1, 0, 0}, {1, 0, 0}, {2, 0, 0}});
  check({.strategy = Strategy::shard_grad_op}, {{}, true, {}, {}}, Counts{{0, 0, 0}, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}});
  check({.reshard_after_forward = Reshard::over(2)}, {Reshard::over(2), true, {}, Reshard::over(2)},
        Counts{{0, 1, 1}, {1, 0, 0}, {1, 1, 1}, {1, 1, 1}});
  // A number of ranks of each unit's own: all of them are as good as `true`.
  check({}, {{}, Reshard::over(2), Reshard::over(4), true}, Counts{{0, 0, 0}, {0, 1, 1}, {2, 0, 0}, {2, 0, 0}});
  check({.strategy = Strategy::shard_grad_op}, {{}, Reshard::over(2), {}, {}},
        Counts{{0, 0, 0}, {0, 1, 1}, {1, 0, 0}, {1, 0, 0}});
  check({.strategy = Strategy::hsdp, .group_size = 4}, {{}, {}, Reshard::over(2), {}},
        Counts{{0, 0, 0}, {1, 0, 0}, {1, 1, 1}, {1, 0, 0}});
}

TEST_CASE("a policy that does not go with the scheme is a configuration error that names the unit") {
  CHECK_THAT(refusal({.strategy = Strategy::zero1}, {{}, true}),
             Contains("unit layer0") && Contains("does not shard parameters"));
  CHECK_THAT(refusal({}, {{}, {}, Reshard::over(3)}),
             Contains("unit layer1") && Contains("reshard_after_forward 3 does not divide"));
  CHECK_THAT(refusal({.strategy = Strategy::hsdp, .group_size = 2}, {Reshard::over(4)}),
             Contains("unit root") && Contains("group_size 2"));
  CHECK_THAT(refusal({.strategy = Strategy::nested, .group_size = 2}, {Reshard::over(2)}),
             Contains("unit root") && Contains("nested"));
  CHECK(refusal({.reshard_after_forward = Reshard::over(2)}, {Reshard::over(2), true, false}).empty());
}

TEST_CASE("a last unit without parameters is a unit like any other, at the end of a micro-batch too") {
  for (const std::string& name : scheme_names()) {
    const SchemeOptions scheme = scheme_of(name, kRanks);
    CAPTURE(name);
    const auto with = on_ranks(kRanks, [&](World&world) { return train_plain_end(world, scheme, true); }),
               without = on_ranks(kRanks, [&](World&world) { return train_plain_end(world, scheme, false); });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      CHECK(with[rank].second == "");
      CHECK(with[rank].first == without[rank].first);
    }
  }
}

}  // namespace zs::test::unit_policy_test
