// Frozen matrices that are held and gathered in a format: the same bits in every scheme, and the bytes that are
// planned.
#include <catch2/catch.hpp>

#include "model/train/plan/plan.h"
#include "runtime/base/int8_blocks.h"
#include "runtime/base/nf4_blocks.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/copy_weights.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::quantized_test {
namespace {

using Catch::Contains;

/// A small model beside an adapter, or partly frozen, whose frozen matrices are held in a format.
Config quantized_config(bool by_adapter, const std::string& format, const std::string& param) {
  Config config = tiny_config();
  config.train.global_batch = 6;
  config.precision.param = param;
  config.precision.output = config.precision.validation = param;
  config.precision.quantize = format;
  if (by_adapter) {
    config.lora.rank = 2;
    config.lora.alpha = 2;
    config.lora.targets = {"c_attn"};
  } else {
    config.train.frozen = {"blocks.{0-1}.mlp", "blocks.1.attention*", "token_embedding*"};
  }
  return config;
}

bool is_same(const TinyResult& a, const TinyResult& b) {
  return a.losses == b.losses && a.grad_norms == b.grad_norms && a.weights == b.weights;
}

/// A chain whose layer1 is frozen and held in a format.
struct QuantizedRun : ChainRun {
  explicit QuantizedRun(World& world, UnitPolicy policy = {.is_frozen = true, .frozen_format = frozen_nf4()},
                        ShardOptions options = {})
      : ChainRun(world, std::move(options), [policy](Chain& chain, ShardedRuntime& runtime) {
          shard_module(chain, runtime, Units::block, {},
                       [policy](const Module& module) { return module.path() == "layer1" ? policy : UnitPolicy{}; });
        }) {}
  TrainingState state(World& world) { return {world, runtime.executor(), *optimizer}; }
};
constexpr int kQuantizedUnit = 2;

}  // namespace

TEST_CASE("a training whose frozen matrices are held in a format has the same bits in any scheme at any rank count") {
  const std::string format = GENERATE("nf4", "int8"), param = GENERATE("f32", "bf16");
  const bool by_adapter = GENERATE(true, false);
  const std::string scheme = GENERATE("zero3", "zero3 k", "shard_grad_op", "zero2", "zero1", "ddp", "hsdp", "nested"),
                    layout = GENERATE("flat", "zero-copy", "small whole");
  if (is_thinned_out()) return;
  const int ranks = scheme == "hsdp" || scheme == "nested" || scheme == "zero3 k" ? 4 : GENERATE(2, 3);
  CAPTURE(scheme, layout, format, param, by_adapter, ranks);
  Config config = quantized_config(by_adapter, format, param);
  const TinyResult alone = train_tiny(config, {.steps = 2});
  choose_scheme(config, scheme_of(scheme, ranks));
  choose_layout(config, layout);
  config.train.deterministic = true;
  const TinyResult several = train_tiny(config, {.ranks = ranks, .steps = 2});
  CHECK(is_same(several, alone));
  CHECK(several.peak_bytes == std::vector<std::int64_t>(2, make_plan(config, 0, ranks).step_peak_bytes));
}

TEST_CASE("an evaluation in full precision decodes to f32, and training goes on in bf16") {
  Config config = quantized_config(true, "nf4", "bf16");
  config.precision.validation = "f32";
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const TinyResult alone = train_tiny(config, {.steps = 2});
  CHECK(is_same(train_tiny(config, {.ranks = 2, .steps = 2}), alone));
}

TEST_CASE("a rank holds of each frozen matrix of a block its codes and scales, and no more of it between its uses") {
  const std::string param = GENERATE("f32", "bf16");
  const int ranks = GENERATE(1, 2, 4);
  const std::string scheme = GENERATE("zero3", "zero1", "ddp");
  Config config = quantized_config(true, "none", param);
  choose_scheme(config, scheme_of(scheme, ranks));
  config.shard.prefetch = 0;
  config.precision.frozen = "bf16";
  const TrainPlan in_bf16 = make_plan(config, 0, ranks);
  config.precision.quantize = "nf4";
  const TrainPlan quantized = make_plan(config, 0, ranks);
  const auto pooled = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  std::int64_t held = 0, matrices = 0, decoded = 0;  // bytes, elements, and bytes of one unit
  for (const TrainPlan::Unit& unit : quantized.units) {
    CHECK(unit.name.ends_with(".quantized") == (unit.held_format != nullptr));
    if (!unit.is_frozen) continue;
    held += pooled(unit.weights_bytes());
    if (unit.held_format == nullptr) continue;
    CHECK(unit.layout->ranks() == (scheme == "zero3" ? ranks : 1));
    const std::int64_t elems = unit.layout->shard_elems();
    decoded = elems * unit.layout->ranks() * (param == "bf16" ? 2 : 4);
    CHECK(elems % 64 == 0);
    CHECK(unit.weights_bytes() == pooled(elems / 2 + elems / 64 * 4));
    matrices += elems;
  }
  REQUIRE(matrices > 0);
  CHECK(quantized.at_peak.at("frozen") == held);
  const std::int64_t saved = in_bf16.at_peak.at("frozen") - held;
  if (scheme != "zero1") CHECK(saved >= matrices * 2 - matrices * 9 / 16 - 64 * std::ssize(quantized.units));
  if (scheme == "ddp" && param == "bf16") CHECK(quantized.at_peak.at("full_param") <= 2 * decoded);  // of three
  CHECK(in_bf16.persistent_bytes - quantized.persistent_bytes == saved);
}

TEST_CASE("a gather moves codes and scales, a fraction of the bytes") {
  Config config = quantized_config(true, "none", "bf16");
  config.precision.frozen = "bf16";
  const std::int64_t in_bf16 = make_plan(config, 0, 2).sent.parameter_bytes();
  config.precision.quantize = "nf4";
  const std::int64_t quantized = make_plan(config, 0, 2).sent.parameter_bytes();
  CHECK(quantized * 2 < in_bf16);
}

TEST_CASE("blocks begin with parameters and with shards, whatever the layout of other units") {
  Config config = quantized_config(true, "int8", "f32");
  choose_layout(config, GENERATE("flat", "small whole"));
  const int ranks = GENERATE(1, 2, 3);
  for (const TrainPlan::Unit& unit : make_plan(config, 0, ranks).units) {
    if (unit.held_format == nullptr) continue;
    CHECK(!unit.layout->is_interleaved());
    CHECK(unit.layout->whole_elems() == 0);
    CHECK(unit.layout->shard_elems() % kInt8BlockElems == 0);
    for (const FlatView& view : unit.layout->views()) {
      CHECK(view.shape.rank() >= 2);
      CHECK(view.name.starts_with("blocks."));
      CHECK(view.offset % kInt8BlockElems == 0);
    }
  }
}

TEST_CASE("weights in a format are read in full, and what would write them or take them for numbers is refused") {
  const TempDir temp;
  const auto messages = on_ranks(2, [&](World& world) {
    QuantizedRun run(world);
    Chain copy;
    ShardedRuntime other(run.context, world, in_tests({}));
    shard_module(copy, other, Units::block, {}, [](const Module& module) {
      return module.path() == "layer1" ? UnitPolicy{.is_frozen = true, .frozen_format = frozen_nf4()} : UnitPolicy{};
    });
    std::vector<std::string> said;
    const auto add = [&](const auto& work) { said.push_back(message_of(work)); };
    const std::vector<std::vector<float>> weights = run.weights();
    std::vector<float> encoded = weights[3];
    std::vector<std::byte> bytes(static_cast<std::size_t>(nf4_bytes(std::ssize(encoded))));
    pack_nf4(bytes.data(), encoded.data(), std::ssize(encoded));
    unpack_nf4({encoded.data(), std::ssize(encoded), DType::f32, DeviceKind::cpu}, bytes.data());
    said.push_back(encoded == weights[3] && weights[3].size() > 1 && weights[3][0] != 0 ? "" : "other weights");
    add([&] { const UnshardScope scope(run.runtime, {kQuantizedUnit}); });
    add([&] { save(run.state(world), temp.path(), {.step = 1}); });
    add([&] { copy_weights(run.runtime.executor(), other.executor()); });
    add([&] { save(run.state(world), temp.path(), {.step = 1, .with_frozen = false}); });
    return said;
  });
  for (const std::vector<std::string>& said : messages) {
    CHECK(said[0].empty());
    for (std::size_t i = 1; i < 4; ++i)
      CHECK_THAT(said[i], Contains("the weights of unit layer1 are held as nf4, and not as numbers"));
    CHECK(said[4].empty());
  }
}

TEST_CASE("a format goes with frozen units that are whole and sharded as the others") {
  const auto message = [](UnitPolicy policy, ShardOptions options = {}) {
    return on_ranks(
        2, [&](World& world) { return message_of([&] { const QuantizedRun run(world, policy, options); }); })[0];
  };
  const FrozenFormat* const format = frozen_int8();
  CHECK(message({.is_frozen = true, .frozen_format = format}).empty());
  CHECK_THAT(message({.frozen_format = format}), Contains("weights held as int8 do not go with training"));
  CHECK_THAT(message({.reshard_after_forward = Reshard(false), .is_frozen = true, .frozen_format = format}),
             Contains("do not go with reshard_after_forward"));
  CHECK_THAT(message({.is_frozen = true, .frozen_format = format}, {.checks_writes = true}),
             Contains("do not go with checks_writes"));
  CHECK_THAT(message_of([] { frozen_format_named("int4"); }), Contains("called int4: there are none, int8 and nf4"));
}

TEST_CASE("ranks that hold weights in other formats are told apart") {
  static const FrozenFormat renamed = [] {
    FrozenFormat format = *frozen_nf4();
    format.name = "other";
    return format;
  }();
  const auto messages = [](bool is_of_unit) {
    return on_ranks(2, [=](World& world) {
      const FrozenFormat* const format = world.rank() == 0 ? frozen_nf4() : &renamed;
      return message_of([&] {
        QuantizedRun run(world, {.is_frozen = true, .frozen_format = is_of_unit ? format : nullptr},
                         {.frozen_format = is_of_unit ? nullptr : format});
        run.micro_batch(1);
        run.optimizer->step(1e-2f, 1);
        run.device->synchronize();
      });
    });
  };
  for (const std::string& message : messages(true)) CHECK_THAT(message, Contains("weights are held as"));
  for (const std::string& message : messages(false)) CHECK_THAT(message, Contains("frozen_format other"));
}

}  // namespace zs::test::quantized_test
