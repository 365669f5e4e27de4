// Recomputed activations under sharding: of the model by configuration, and in a trainer of one's own.
#include <catch2/catch.hpp>

#include <algorithm>
#include <stdexcept>

#include "model/nn/module.h"
#include "model/train/plan/plan.h"
#include "model/train/run_dir/weights.h"
#include "runtime/shard/optimizers/adamw.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/recompute.h"
#include "tests/shard/step_model.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::recompute_test {
namespace {

using Tensors = std::vector<Tensor>;

Config short_config() {
  Config config = tiny_config();
  config.train.global_batch = 4;
  return config;
}

std::size_t launches(const std::vector<TraceEntry>& trace, const std::string& name) {
  return static_cast<std::size_t>(
      std::count_if(trace.begin(), trace.end(), [&](const TraceEntry& entry) { return entry.op.name == name; }));
}

std::string first_violation(const std::vector<TraceEntry>& trace) {
  const auto violations = verify_order(trace);
  return violations.empty() ? "" : violations.front().message;
}

/// Activations at the peak of a step of GPT-2 124M over 4 x 256 tokens.
std::int64_t activations_of_124M(const std::string& recompute) {
  Config config;
  config.model.layers = config.model.heads = 12;
  config.model.width = 768;
  config.model.context = 1024;
  config.model.vocab = 50257;
  config.train.global_batch = config.train.micro_batch = 4;
  config.train.sequence = 256;
  config.train.recompute = {recompute};
  return make_plan(config, 0, 1).at_peak.at("activation");
}

// A trainer of one's own: three layers, each a unit, whose recomputation the trainer chooses.

constexpr std::int64_t kWidth = 16, kRows = 8;

struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Layer : Module {
  explicit Layer(std::string path)
      : Module(std::move(path)), weight_(add_parameter("weight", {kWidth, kWidth}, {.normal_std = 0.5f}, true)) {}
  bool is_block() const override { return true; }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    const Tensor y = linear(x, weight_, nullptr);
    if (throws_again && x.context().mode().runs_again) throw Thrown("thrown by a layer that ran again");
    return add(x, gelu(y, GeluKind::tanh));
  }
  Parameter& weight_;
  bool throws_again = false;
};

enum class Style : std::uint8_t {
  kept,
  each,         ///< each layer on its own
  pair,         ///< the first two together
  nested,       ///< all together, and each of them again
  frozen_kept,  ///< the second is used without a gradient
  frozen        ///< the same within a recomputed function
};

struct Stack : Module {
  Stack() : Module(""), head_(add_parameter("head", {kWidth, kWidth}, {.normal_std = 0.5f}, true)) {
    for (int i = 0; i < 3; ++i) add_child(*layers_.emplace_back(std::make_unique<Layer>(fmt::format("layer{}", i))));
  }
  Tensor layer(std::size_t i, const Tensor& x, bool recomputes) {
    if (!recomputes) return layers_[i]->forward(x);
    return recompute({x}, [this, i](const Tensors& in) { return layers_[i]->forward(in[0]); });
  }
  Tensor with_frozen(const Tensor& x) {
    Tensor y;
    {
      const NoGradGuard no_grad(x.context());
      y = layers_[1]->forward(x);
    }
    return layers_[2]->forward(add(layers_[0]->forward(x), y));
  }
  Tensor layers(const Tensor& x, bool recomputes) {
    return layer(2, layer(1, layer(0, x, recomputes), recomputes), recomputes);
  }
  Tensor loss(const Tensor& x, const Tensor& targets, Style style) {
    const ForwardScope scope = enter();
    Tensor y = linear(x, head_, nullptr);
    switch (style) {
      case Style::kept: y = layers(y, false); break;
      case Style::each: y = layers(y, true); break;
      case Style::pair:
        y = recompute({y}, [this](const Tensors& in) { return layer(1, layer(0, in[0], false), false); });
        y = layer(2, y, true);
        break;
      case Style::nested: y = recompute({y}, [this](const Tensors& in) { return layers(in[0], true); }); break;
      case Style::frozen_kept: y = with_frozen(y); break;
      case Style::frozen: y = recompute({y}, [this](const Tensors& in) { return with_frozen(in[0]); }); break;
    }
    return lm_head_loss(y, head_, targets, kWidth);
  }
  Parameter& head_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

struct StackRun {
  std::vector<float> losses;
  std::string weights;
  std::vector<Action> actions;  // of the last micro-batch
  std::vector<TraceEntry> trace;
  std::string deviation;
  std::string thrown;
};

struct StackOptions {
  Style style = Style::kept;
  SchemeOptions scheme = {};
  PrefetchOptions schedule = {};
  int ranks = 1;
  bool throws = false;  ///< in the first micro-batch, which is then dropped and done again
};

Tensor stack_loss(Context& context, Stack& model, Style style, int rank) {
  std::vector<float> x(kRows * kWidth);
  std::vector<std::int32_t> targets(kRows);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11) * 0.25f - 1.0f;
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i % kWidth);
  return model.loss(Tensor::from_host(context, {kRows, kWidth}, std::move(x)),
                    Tensor::from_host(context, {kRows}, std::move(targets)), style);
}

StackRun train_stack(World& world, const StackOptions& options) {
  const auto device = Device::create(
      DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60, .perturb_seed = perturb_seed_of_environment()});
  Context context(*device);
  Stack model;
  const bool zero_copy = options.style != Style::kept && options.style != Style::frozen_kept;
  ShardedRuntime runtime(context, world,
                         {.scheme = options.scheme, .schedule = options.schedule, .seed = 3, .zero_copy = zero_copy});
  shard_module(model, runtime, Units::block);
  AdamW optimizer(runtime.executor(), {});
  StackRun run;
  device->trace().start();
  for (int step = 1; step <= 3; ++step) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      model.layers_[1]->throws_again = options.throws && run.thrown.empty();
      runtime.begin_micro_batch(Mode::train, micro_batch == 1);
      try {
        const Tensor loss = stack_loss(context, model, options.style, world.rank());
        backward(loss, 0.5f);
        runtime.end_micro_batch();
        run.losses.push_back(loss.to_host()[0]);
      } catch (const Thrown& error) {
        run.thrown = error.what();
        runtime.abandon();
        --micro_batch;
      }
    }
    optimizer.step(1e-2f, step);
  }
  device->synchronize();
  device->trace().stop();
  const auto deviations = runtime.scheduler().take_deviations();
  run.deviation = deviations.empty() ? "" : deviations.front();
  run.actions = runtime.actions();
  run.trace = device->trace().entries();
  run.weights = save_weights(runtime.executor());
  return run;
}

StackRun train_stack(const StackOptions& options) {
  StackRun first;
  run_local_world(options.ranks, {.timeout_s = 60}, [&](World& world) {
    StackRun run = train_stack(world, options);
    if (world.rank() == 0) first = std::move(run);  // the only writer; read after every rank has ended
  });
  return first;
}

bool is_same_run(const StackRun& a, const StackRun& b) { return a.losses == b.losses && a.weights == b.weights; }

}  // namespace

TEST_CASE("I1: recomputed activations do not change a bit of losses, norms and weights", "[recompute]") {
  Config config = short_config();
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  config.train.deterministic = GENERATE(true, false);
  config.shard.reduce_every_micro_batch = GENERATE(true, false);
  const int ranks = GENERATE(1, 2);
  if (is_thinned_out()) return;
  const TinyResult kept = train_tiny(config, {.ranks = ranks});
  for (const char* recompute : {"block", "attention"}) {
    for (const int variant : {0, 1, 2, 3}) {
      config.train.recompute = {recompute};
      config.shard.reshard_after_forward = variant % 2 == 0;
      config.shard.prefetch = variant / 2;
      config.shard.zero_copy = variant == 1 || variant == 2 ? "auto" : "off";  // with either value of both
      CAPTURE(config.precision.param, config.train.deterministic, config.shard.reduce_every_micro_batch, ranks,
              recompute, variant);
      const TinyResult run = train_tiny(config, {.ranks = ranks});
      CHECK(run.losses == kept.losses);
      CHECK(run.grad_norms == kept.grad_norms);
      CHECK(run.weights == kept.weights);
    }
  }
}

TEST_CASE("I1: seeded delays and poisoned freed memory do not change a bit of a recomputed step", "[recompute]") {
  Config config = short_config();
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  const TinyResult kept = train_tiny(config, {.ranks = 2});
  config.train.recompute = {GENERATE(as<std::string>{}, "block", "attention")};
  CHECK(train_tiny(config, {.ranks = 2, .perturb_seed = 1}).weights == kept.weights);
  CHECK(train_tiny(config, {.ranks = 2, .follows_plan = false}).weights == kept.weights);
}

TEST_CASE("I4: a recomputed step counts the planned bytes, enqueues the planned ops, and every access is ordered",
          "[recompute]") {
  Config config = short_config();
  config.train.recompute = {GENERATE(as<std::string>{}, "block", "attention")};
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  config.shard.reshard_after_forward = GENERATE(true, false);
  const int ranks = GENERATE(1, 2);
  CAPTURE(config.train.recompute, config.precision.param, config.shard.reshard_after_forward, ranks);
  const TrainPlan plan = make_plan(config, {.ranks = ranks, .has_every_micro_batch = true});
  TinyResult run = train_tiny(config, {.ranks = ranks, .is_calm = true});  // poisoning would be work beside the plan's
  for (const std::int64_t peak : run.peak_bytes) CHECK(peak == plan.step_peak_bytes);
  CHECK(run.allocations == std::vector<std::int64_t>{1, 0, 0});
  CHECK(run.reserved_bytes == plan.reserved_bytes);
  CHECK(first_violation(run.trace) == "");
  std::erase_if(run.trace, [](const TraceEntry& entry) { return entry.kind == TraceEntry::Kind::sync; });
  REQUIRE(run.trace.size() == plan.trace.size());
  for (std::size_t i = 0; i < run.trace.size(); ++i) REQUIRE(run.trace[i].op.name == plan.trace[i].op.name);
}

TEST_CASE("I1: blocks recomputed by pattern do not change a bit, take the planned bytes, and every access is ordered",
          "[recompute]") {
  Config config = short_config();
  config.shard.unit_mib = GENERATE(0.0, 1.0);  // a block a unit, or all of them
  config.shard.reshard_after_forward = GENERATE(true, false);
  const int ranks = GENERATE(1, 2);
  const TinyResult kept = train_tiny(config, {.ranks = ranks});
  for (const std::vector<std::string>& recompute : {std::vector<std::string>{"blocks.0=block", "*=attention"},
                                                    {"blocks.{1-2}=block"},
                                                    {"blocks.1=none", "blocks.{*}=block"}}) {
    config.train.recompute = recompute;
    CAPTURE(config.shard.unit_mib, config.shard.reshard_after_forward.str(), ranks, recompute);
    const TrainPlan plan = make_plan(config, 0, ranks);
    const TinyResult run = train_tiny(config, {.ranks = ranks});
    CHECK(run.losses == kept.losses);
    CHECK(run.weights == kept.weights);
    for (const std::int64_t peak : run.peak_bytes) CHECK(peak == plan.step_peak_bytes);
  }
}

TEST_CASE("a pattern of blocks says of each what it recomputes, and the first that matches counts", "[recompute]") {
  Config config = short_config();
  config.train.global_batch = 1;
  const auto products = [&](const std::vector<std::string>& recompute) {
    config.train.recompute = recompute;
    return launches(make_plan(config, 0, 1).trace, "linear");
  };
  CHECK(products({"blocks.0=block"}) == 12 + 3);
  CHECK(products({"blocks.{1-2}=attention"}) == 12 + 2);
  CHECK(products({"blocks.2=block", "blocks.{*}=attention"}) == 12 + 3 + 2);
  CHECK(products({"blocks.2=none", "blocks.{*}=block"}) == 12 + 6);
  CHECK(products({}) == 12);
  CHECK_THROWS_WITH(products({"blocks.{3-9}=block"}),
                    Catch::Contains("train.recompute: \"blocks.{3-9}\" matches no block") &&
                        Catch::Contains("nearest blocks are blocks.{*}"));
}

TEST_CASE("what is asked of the executor does not depend on recomputation", "[recompute]") {
  Config config = short_config();
  config.shard.prefetch = GENERATE(0, 1, 2);
  const TrainPlan kept = make_plan(config, 0, 2);
  config.train.recompute = {GENERATE(as<std::string>{}, "block", "attention")};
  const TrainPlan plan = make_plan(config, 0, 2);
  CHECK(text_of(plan.micro_batch) == text_of(kept.micro_batch));
  for (const auto phase : {ExecOrder::Phase::forward, ExecOrder::Phase::backward}) {
    CHECK(plan.train_order.units(phase) == kept.train_order.units(phase));
  }
}

TEST_CASE("a recomputed part runs again once, without what no backward needs", "[recompute]") {
  Config config = short_config();
  config.train.global_batch = 1;
  const auto launched = [&](const char* recompute, const char* name) {
    config.train.recompute = {recompute};
    return launches(make_plan(config, 0, 1).trace, name);
  };
  // Three layers of four products, and the head's chunks apart. A block leaves out its last product and sum, attention
  // its projection.
  CHECK(launched("none", "linear") == 12);
  CHECK(launched("block", "linear") == 12 + 9);
  CHECK(launched("attention", "linear") == 12 + 3);
  for (const char* recompute : {"none", "block", "attention"}) CHECK(launched(recompute, "add") == 3);
  CHECK(launched("none", "add_layer_norm") == 3);
  CHECK(launched("block", "add_layer_norm") == 3 + 3);
  CHECK(launched("attention", "add_layer_norm") == 3);
  CHECK(launched("block", "attention") == 6);
  CHECK(launched("attention", "attention") == 6);
  CHECK(launched("attention", "gelu") == 3);
  for (const char* recompute : {"none", "block", "attention"}) CHECK(launched(recompute, "linear_dweight") == 12);
}

TEST_CASE("the activations of GPT-2 124M shrink to what is said to be kept", "[recompute]") {
  const std::int64_t none = activations_of_124M("none"), attention = activations_of_124M("attention"),
                     block = activations_of_124M("block");
  CHECK(static_cast<double>(attention) < 0.75 * static_cast<double>(none));
  CHECK(static_cast<double>(block) < 0.25 * static_cast<double>(none));
}

TEST_CASE("layers recomputed by a trainer of one's own give the same bits, whole scopes inside", "[recompute]") {
  StackOptions options;
  options.ranks = GENERATE(1, 2);
  options.scheme.reshard_after_forward = GENERATE(true, false);
  options.schedule.prefetch = GENERATE(0, 1, 2);
  options.scheme.reduce_every_micro_batch = GENERATE(true, false);
  CAPTURE(options.ranks, options.scheme.reshard_after_forward.str(), options.schedule.prefetch,
          options.scheme.reduce_every_micro_batch);
  const StackRun kept = train_stack(options);
  for (const Style style : {Style::each, Style::pair, Style::nested}) {
    options.style = style;
    CAPTURE(static_cast<int>(style));
    const StackRun run = train_stack(options);
    CHECK(is_same_run(run, kept));
    CHECK(run.deviation == "");
    CHECK(first_violation(run.trace) == "");
    if (style == Style::each) CHECK(text_of(run.actions) == text_of(kept.actions));
  }
}

TEST_CASE(
    "a unit that a recomputed function uses without a gradient is gathered for the second run, and gets no gradient",
    "[recompute]") {
  StackOptions options;
  options.ranks = GENERATE(1, 2);
  options.schedule.prefetch = GENERATE(0, 1);
  options.style = Style::frozen_kept;
  const StackRun kept = train_stack(options);
  options.style = Style::frozen;
  const StackRun run = train_stack(options);
  CHECK(is_same_run(run, kept));
  constexpr int kFrozen = 2;
  const auto count = [&](Action::Kind kind) {
    return std::count(run.actions.begin(), run.actions.end(), Action{kind, kFrozen});
  };
  // It is the first to run, and still unsharded from the micro-batch before.
  CHECK(count(Action::Kind::gather) == 1);
  CHECK(count(Action::Kind::free_full) == 2);
  CHECK(count(Action::Kind::reduce) == 0);
  CHECK(first_violation(run.trace) == "");
}

TEST_CASE("I7: an exception in the second run leaves the runtime ready for another micro-batch", "[recompute]") {
  StackOptions options;
  options.ranks = GENERATE(1, 2);
  options.style = GENERATE(Style::each, Style::pair, Style::nested);
  options.schedule.prefetch = GENERATE(0, 1);
  const StackRun undisturbed = train_stack(options);
  options.throws = true;
  const StackRun run = train_stack(options);
  CHECK(run.thrown == "thrown by a layer that ran again");
  CHECK(is_same_run(run, undisturbed));
  CHECK(run.deviation == "");
  CHECK(first_violation(run.trace) == "");
}

}  // namespace zs::test::recompute_test
