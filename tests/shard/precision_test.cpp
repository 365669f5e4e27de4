// In what units compute, and what is cast where.
#include <catch2/catch.hpp>

#include "model/nn/module_list.h"
#include "model/nn/transformer_block.h"
#include "model/sharding/fully_shard.h"
#include "model/train/plan/plan.h"
#include "model/train/session/session.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::precision_test {
namespace {

using Arrays = std::vector<std::vector<float>>;
using Catch::Contains;
constexpr DType kF32 = DType::f32, kBf16 = DType::bf16;

/// Units root, layer0, layer1, layer2 with these precisions.
auto shard_by(const std::vector<MixedPrecisionPolicy>& precisions) {
  return [precisions](Chain& chain, ShardedRuntime& runtime) {
    std::size_t next = 0;
    shard_module(chain, runtime, Units::block, {},
                 [&](const Module&) { return UnitPolicy{.precision = precisions.at(next++)}; });
  };
}

/// Dtypes of what the ops of this name read first, in order, without those of the same name in a row.
std::vector<DType> dtypes_of(const std::vector<TraceEntry>& trace, const std::string& name) {
  std::vector<DType> dtypes;
  for (const TraceEntry& entry : trace) {
    if (entry.kind == TraceEntry::Kind::op && entry.op.name.substr(0, entry.op.name.find(':')) == name) {
      dtypes.push_back(entry.op.reads.front().dtype);
    }
  }
  return dtypes;
}

struct Outcome {
  float loss = 0;
  Arrays gradients;
  std::vector<TraceEntry> trace;
};

/// One training micro-batch.
Outcome train(World& world, const std::vector<MixedPrecisionPolicy>& precisions) {
  ChainRun run(world, {.schedule = {.prefetch = 0}, .seed = 3, .zero_copy = false}, shard_by(precisions));
  run.device->trace().start();
  Outcome outcome;
  outcome.loss = run.micro_batch(1);
  run.device->trace().stop();
  outcome.gradients = run.gradients();
  outcome.trace = run.device->trace().entries();
  return outcome;
}

/// Gradients of four micro-batches that are reduced in the last, on one rank; on two ranks of equal samples they would
/// be twice that.
Arrays accumulated(DType reduce, bool by_guard) {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(
      *world,
      {.scheme = {.reduce_every_micro_batch = by_guard}, .precision = {.param = kBf16, .reduce = reduce}, .seed = 3});
  for (int i = 0; i < 4; ++i) {
    std::optional<NoSync> guard;
    if (by_guard && i < 3) guard.emplace(run.runtime);
    run.micro_batch(i, i == 3);
  }
  return run.gradients();
}

Config validated_config(const std::string& scheme, const std::string& layout, int ranks) {
  Config config = tiny_config();
  config.train.deterministic = false;
  config.train.global_batch = 2 * ranks;
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  choose_scheme(config, scheme_of(scheme, ranks));
  choose_layout(config, layout);
  return config;
}

const ReadSamples kSamples = [](std::int64_t first) {
  std::vector<std::int32_t> inputs(16);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    inputs[i] = static_cast<std::int32_t>((static_cast<std::size_t>(first) * 5 + i * 7) % 61);
  return SampleBatch{inputs, {inputs.rbegin(), inputs.rend()}};
};

/// The initial weights' loss.
double validation_loss(World& world, const Config& config) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Session session(*device, world, config);
  return session.validate(kSamples);
}

}  // namespace

TEST_CASE("units compute, gather, reduce and hand on in the dtypes of their own precision") {
  const MixedPrecisionPolicy f32{}, bf16{.param = kBf16, .reduce = kBf16, .output = kF32},
      mixed{.param = kBf16, .output = kF32};
  const auto outcomes = on_ranks(2, [&](World& world) { return train(world, {f32, bf16, f32, mixed}); });
  const auto plain = on_ranks(2, [&](World& world) { return train(world, {f32, f32, f32, f32}); });
  const std::vector<TraceEntry>& trace = outcomes[0].trace;
  using Dtypes = std::vector<DType>;
  // Root, layer0, layer1, layer2; then layers 2, 1 and 0 for backward.
  CHECK(dtypes_of(trace, "all_gather") == Dtypes{kF32, kBf16, kF32, kBf16, kBf16, kF32, kBf16});
  CHECK(dtypes_of(trace, "linear") == Dtypes{kF32, kBf16, kF32, kBf16});
  CHECK(dtypes_of(trace, "gelu") == Dtypes{kBf16, kF32, kBf16});
  CHECK(dtypes_of(trace, "add") == Dtypes(3, kF32));
  CHECK(dtypes_of(trace, "reduce_scatter") == Dtypes{kF32, kF32, kBf16, kF32});
  CHECK(dtypes_of(trace, "cast") ==
        Dtypes{kF32, kBf16, kF32, kBf16, kF32, kBf16, kF32, kBf16});  // in and out of both layers, and back
  CHECK(outcomes[0].loss != plain[0].loss);
  CHECK(outcomes[0].loss == Approx(plain[0].loss).epsilon(0.02));  // a few values of 8 bits each meet in the loss
  CHECK(outcomes[0].loss == train(*make_single_world({.timeout_s = 60}), {f32, bf16, f32, mixed}).loss);
}

TEST_CASE("gradients of several micro-batches are summed in f32 and rounded once, though the reduction carries bf16") {
  const bool by_guard = GENERATE(false, true);
  const Arrays compute_copy = accumulated(kBf16, by_guard);
  Arrays expected = accumulated(kF32, by_guard);
  for (auto& unit : expected) {
    for (float& value : unit) value = static_cast<float>(BFloat16(value));
  }
  CHECK(compute_copy == expected);
  CHECK(compute_copy != accumulated(kF32, by_guard));
}

TEST_CASE("a unit that does not cast what comes in is given what it computes in, or says what it got") {
  const auto message = [](bool cast_forward_inputs) {
    return message_of([&] {
      train(*make_single_world({.timeout_s = 60}),
            {{}, {.param = kBf16, .output = kF32, .cast_forward_inputs = cast_forward_inputs}, {}, {}});
    });
  };
  CHECK(message(true).empty());
  CHECK_THAT(message(false), Contains("bf16") && Contains("f32"));
}

TEST_CASE("a block of units that hand on f32 takes what comes in bf16") {
  struct Net : Layer<Net> {
    Linear& in = make_child<Linear>("in", 4, 8);
    ModuleList<TransformerBlock>& blocks = make_child<ModuleList<TransformerBlock>>("blocks");
    Net() { blocks.add(BlockOptions{.attention = {.width = 8, .heads = 2}, .mlp = {.width = 8, .hidden = 16}}); }
    Tensor forward(const Tensor& x) {
      Tensor y = in(x);
      for (TransformerBlock* block : blocks) y = (*block)(y);
      return y;
    }
  };
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Net net;
  for (TransformerBlock* block : net.blocks) block->set_recompute(GENERATE(Recompute::none, Recompute::block));
  ShardedModel model = fully_shard(net, context, *world, {.shard = {.precision = {.param = kBf16, .output = kF32}}});
  auto micro_batch = model.micro_batch();
  const Tensor y = net(Tensor::zeros(context, {2, 3, 4}, kF32));
  CHECK(y.dtype() == kF32);
  mean(y).backward();
  micro_batch.end();
}

TEST_CASE("a precision that there is not is a configuration error that names the unit") {
  const auto message = [](const MixedPrecisionPolicy& precision) {
    return message_of([&] { train(*make_single_world({.timeout_s = 60}), {{}, {}, precision, {}}); });
  };
  CHECK_THAT(message({.reduce = kBf16}), Contains("unit layer1") && Contains("gradients of f32 parameters"));
  CHECK_THAT(message({.param = DType::i32}), Contains("unit layer1"));
  CHECK_THAT(message({.output = DType::f64}), Contains("unit layer1"));
}

TEST_CASE("validation in full precision gives the bits of f32 parameters, in every scheme and layout") {
  for (const std::string& scheme : scheme_names()) {
    for (const char* layout : {"flat", "zero-copy", "small whole"}) {
      if (is_thinned_out()) continue;
      Config config = validated_config(scheme, layout, 4);
      const auto loss = [&](const char* param, const char* validation) {
        config.precision.param = param;
        config.precision.validation = validation;
        return on_ranks(4, [&](World& world) { return validation_loss(world, config); });
      };
      CAPTURE(scheme, layout);
      const auto full = loss("f32", "f32");
      CHECK(loss("bf16", "f32") == full);
      CHECK(loss("bf16", "bf16") != full);
    }
  }
}

TEST_CASE("training goes on in bf16 as if it had not been validated in f32, in the memory of the plan") {
  const std::string scheme = GENERATE(as<std::string>{}, "zero3", "zero3 k", "nested", "zero1", "ddp");
  Config config = validated_config(scheme, GENERATE(as<std::string>{}, "flat", "zero-copy", "small whole"), 4);
  if (is_thinned_out()) return;
  config.precision.param = "bf16";
  const TinyResult expected = train_tiny(config, {.ranks = 4});
  config.precision.validation = "f32";
  const TinyResult run = train_tiny(config, {.ranks = 4});
  CAPTURE(scheme);
  CHECK(run.weights == expected.weights);
  CHECK(run.losses == expected.losses);
  CHECK(run.allocations == std::vector<std::int64_t>{1, 0, 0});
  CHECK(run.reserved_bytes == make_plan(config, 0, 4).reserved_bytes);
}

TEST_CASE(
    "an evaluation in full precision begins when nothing is gathered in bf16, and what is gathered after it is bf16 "
    "again") {
  const auto messages = on_ranks(2, [](World& world) {
    ChainRun run(world, {.precision = {.param = kBf16, .is_full_in_evaluation = true}});
    const auto evaluate = [&](bool is_last) {
      const NoGradGuard no_grad(run.context);
      run.runtime.begin_micro_batch(Mode::eval, is_last);
      const Tensor loss = run.model.loss(chain_input(run.context, 0), chain_targets(run.context));
      run.runtime.end_micro_batch();
      return loss.to_host()[0];
    };
    run.micro_batch(0, false);  // the root stays for the next micro-batch
    const std::string refused = message_of([&] { evaluate(true); });
    run.runtime.abandon();
    const float first = evaluate(false), second = evaluate(true);
    run.runtime.pregather();
    run.micro_batch(1);
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
    return std::pair(refused, first == second);
  });
  for (const auto& [refused, is_same] : messages) {
    CHECK_THAT(refused, Contains("unit root is gathered in bf16") && Contains("between steps"));
    CHECK(is_same);
  }
}

TEST_CASE("I1: sums of the residual stream in f32 are the same bits at every number of ranks, recomputed or not") {
  Config config = tiny_config();
  config.precision = {.param = "bf16", .reduce = "f32", .output = "f32", .validation = {}};
  const TinyResult reference = train_tiny(config, {.ranks = 1});
  CHECK(train_tiny(config, {.ranks = 2}).weights == reference.weights);
  for (const char* recompute : {"block", "attention"}) {
    config.train.recompute = {recompute};
    const TinyResult run = train_tiny(config, {.ranks = 2});
    CAPTURE(recompute);
    CHECK(run.weights == reference.weights);
    CHECK(run.peak_bytes.back() == make_plan(config, 0, 2).step_peak_bytes);
  }
  config.train.recompute = {"none"};
  config.shard.units = "model";
  CHECK(train_tiny(config, {.ranks = 2}).weights == reference.weights);
  const std::vector<TraceEntry> trace = make_plan(config, 0, 1).trace;
  for (const DType dtype : dtypes_of(trace, "add")) CHECK(dtype == kF32);
  for (const DType dtype : dtypes_of(trace, "linear")) CHECK(dtype == kBf16);
  config.precision.output = "bf16";
  CHECK(train_tiny(config, {.ranks = 1}).weights != reference.weights);
}

}  // namespace zs::test::precision_test
