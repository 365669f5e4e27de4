#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <numeric>

#include "model/train/plan/plan.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::compressed_test {
namespace {

constexpr int kRanks = 4;

Config compressed(const std::string& strategy, const std::string& gather, const std::string& reduce) {
  Config config = tiny_config();
  config.train.deterministic = false;
  config.train.global_batch = 2 * kRanks;
  config.shard.strategy = strategy;
  config.shard.group_size = strategy == "zero3" ? 0 : 2;
  config.shard.compress_gather = gather;
  config.shard.compress_reduce = reduce;
  return config;
}

float mean(const std::vector<float>& losses, std::ptrdiff_t begin) {
  return std::accumulate(losses.begin() + begin, losses.begin() + begin + 2 * kRanks, 0.0f) / (2 * kRanks);
}

}  // namespace

TEST_CASE("with 8 bits on the wire a tiny model learns nearly as without, and the same in every run") {
  const std::string strategy = GENERATE("zero3", "nested", "hsdp");
  if (is_thinned_out()) return;
  constexpr int kSteps = 8;
  const TinyOptions options{.ranks = kRanks, .steps = kSteps};
  const TinyResult exact = train_tiny(compressed(strategy, "none", "none"), options);
  for (const auto& [gather, reduce] :
       {std::pair("int8", "none"), std::pair("none", "int8"), std::pair("int8", "int8"), std::pair("fp8", "none")}) {
    CAPTURE(strategy, gather, reduce);
    const Config config = compressed(strategy, gather, reduce);
    const TinyResult packed = train_tiny(config, options);
    CHECK(packed.weights != exact.weights);
    CHECK(train_tiny(config, options).weights == packed.weights);
    const std::ptrdiff_t last = std::ssize(packed.losses) - 2 * kRanks;
    CHECK(mean(packed.losses, last) <
          mean(packed.losses, 0) - 0.5f * (mean(exact.losses, 0) - mean(exact.losses, last)));
    // Weights of 0.02 with errors of at most 1/254 of the largest of 256, or of 1/16 of their own: logits of a tiny
    // model move by less than a hundredth.
    CHECK(std::fabs(mean(packed.losses, 0) - mean(exact.losses, 0)) < 0.01f);
    if (gather == std::string("none")) CHECK(mean(packed.losses, 0) == mean(exact.losses, 0));
  }
}

TEST_CASE("master weights are saved exactly, whatever travels") {
  const TinyOptions untrained{.ranks = kRanks, .steps = 0};
  CHECK(train_tiny(compressed("nested", "int8", "int8"), untrained).weights ==
        train_tiny(compressed("nested", "none", "none"), untrained).weights);
}

TEST_CASE("I4: what travels encoded is planned and counted") {
  const std::string strategy = GENERATE("zero3", "nested"), format = GENERATE("int8", "fp8");
  const bool is_by_plan = GENERATE(false, true);
  CAPTURE(strategy, format, is_by_plan);
  Config config = compressed(strategy, is_by_plan ? "none" : format, "int8");
  if (is_by_plan) {
    config.shard.units = "plan";
    config.plan.apply = {"blocks.{*}"};
    config.plan.gather = {"blocks.0=" + format};
  }
  const TrainPlan plan = make_plan(config, {.ranks = kRanks}),
                  plain = make_plan(compressed(strategy, "none", "none"), {.ranks = kRanks});
  const TinyResult run = train_tiny(config, {.ranks = kRanks});
  for (const std::int64_t bytes : run.peak_bytes) CHECK(bytes == plan.step_peak_bytes);
  const auto scratch = [](const TrainPlan& one, StreamRole stream) {
    return one.scratch_bytes[static_cast<std::size_t>(stream)];
  };
  CHECK(scratch(plan, StreamRole::reduce) > scratch(plain, StreamRole::reduce));
}

namespace {

/// A format of one's own: the upper 16 bits of every f32, and a byte that says whose they are.
struct Upper : GatherFormat {
  explicit Upper(std::string_view called = "upper half") : called_(called) {}
  std::string_view name() const override { return called_; }
  std::int64_t encoded_bytes(std::int64_t elems, DType) const override { return 2 * elems + 2; }
  void encode(const Work&, Buffer encoded, Buffer shard) const override {
    auto* const halves = static_cast<std::uint16_t*>(encoded.data);
    for (std::int64_t i = 0; i < shard.elems; ++i)
      halves[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shard.as<float>()[i]) >> 16);
    halves[shard.elems] = 0x1234;
  }
  void decode(const Work&, Buffer full, Buffer encoded, int parts) const override {
    const std::int64_t n = full.elems / parts;
    const auto* halves = static_cast<const std::uint16_t*>(encoded.data);
    for (int part = 0; part < parts; ++part, halves += n + 1) {
      ZS_CHECK(halves[n] == 0x1234, "part {} has no end", part);
      for (std::int64_t i = 0; i < n; ++i) full.as<float>()[part * n + i] = half_of(halves[i]);
    }
  }
  static float half_of(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
  std::string_view called_;
};

/// The head's weights as forward meets them, and the masters, upper halves alone; what was sent for parameters.
struct Met {
  std::vector<float> met, expected;
  std::int64_t sent = 0, elems = 0;
};

Met met_by_forward(World& world, const SchemeOptions& scheme, Layout layout) {
  const Upper format;
  ChainRun run(world, {.scheme = scheme,
                       .schedule = {.keep_root_unsharded = false},
                       .precision = {.gather_format = &format},
                       .layout = {.layout = layout}});
  Met met;
  const auto weights = run.weights();
  for (const float value : weights[0])
    met.expected.push_back(Upper::half_of(std::bit_cast<std::uint32_t>(value) >> 16));
  const ShardGroups::Sent before = run.runtime.executor().groups().sent();
  run.runtime.begin_micro_batch(Mode::eval, true);
  {
    const ForwardScope scope(&run.runtime, 0);
    run.device->synchronize();
    const Buffer head = run.model.head.value();
    met.met.assign(head.as<float>(), head.as<float>() + head.elems);
  }
  run.runtime.end_micro_batch();
  met.sent = run.runtime.executor().groups().sent().since(before).gather.sent_bytes();
  met.elems = run.runtime.executor().units()[0].layout->gathered_shard_elems();
  return met;
}

}  // namespace

TEST_CASE("1-17, 2B-6: parameters travel in a format of one's own, decoded alike on every rank") {
  const std::string name = GENERATE("zero3", "hsdp", "nested");
  const Layout layout = GENERATE(Layout::flat, Layout::per_parameter);
  const int ranks = GENERATE(1, 2, 3, 4);
  if (ranks == 3 && name != "zero3") return;
  CAPTURE(name, layout, ranks);
  const SchemeOptions scheme = scheme_of(name, ranks);
  const int half = std::max(1, ranks / 2);
  // Ranks of the first step of a gather, where there are two.
  const int gathering = name == "zero3" ? ranks : name == "hsdp" ? half : ranks / half;
  for (const Met& met : on_ranks(ranks, [&](World& world) { return met_by_forward(world, scheme, layout); })) {
    if (gathering > 1) CHECK(met.met == met.expected);
    CHECK(met.sent == (gathering - 1) * (2 * met.elems + 2));
  }
}

TEST_CASE("an evaluation in full precision has the masters, whatever the dtype, the format and the scheme") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const GatherFormat* const format = GENERATE(int8_format(), fp8_format());
  const std::string name = GENERATE("zero3", "nested", "hsdp");
  const bool is_zero_copy = GENERATE(false, true);
  CAPTURE(name_of(param), format->name(), name, is_zero_copy);
  struct Seen {
    float evaluated, trained;
    std::string refused;
    bool operator==(const Seen&) const = default;
  };
  const auto seen = [&](const GatherFormat* of, bool is_full) {
    return on_ranks(4, [&](World& world) {
      ShardOptions options{.scheme = scheme_of(name, 4), .zero_copy = is_zero_copy};
      options.precision = {.param = param, .gather_format = of, .is_full_in_evaluation = is_full};
      ChainRun run(world, options);
      const auto evaluate = [&] {
        const NoGradGuard no_grad(run.context);
        run.runtime.begin_micro_batch(Mode::eval, true);
        const Tensor loss = run.model.loss(chain_input(run.context, 0), chain_targets(run.context));
        run.runtime.end_micro_batch();
        return loss.to_host()[0];
      };
      Seen all{evaluate(), run.micro_batch(0), {}};
      run.runtime.abandon_step();
      run.runtime.pregather();
      all.refused = message_of([&] { (void)evaluate(); });
      return all;
    });
  };
  const auto exact = seen(nullptr, true), decoded = seen(format, false), full = seen(format, true);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(full[rank].evaluated == exact[rank].evaluated);
    CHECK(decoded[rank].evaluated != exact[rank].evaluated);
    CHECK(full[rank].trained == decoded[rank].trained);
    CHECK_THAT(full[rank].refused,
               Catch::Contains(fmt::format("is gathered in {} from {}", name_of(param), format->name())));
    CHECK(decoded[rank].refused.empty());
  }
}

TEST_CASE("1-17: a format that not every rank has is named before anything is trained") {
  const std::string message = message_of([] {
    on_ranks(2, [](World& world) {
      const Upper format(world.rank() == 0 ? "upper half" : "other");
      ChainRun run(world, {.precision = {.gather_format = &format}});
      run.micro_batch(0);
      run.optimizer->step(0.01f);
      run.device->synchronize();
      return 0;
    });
  });
  CHECK_THAT(message, Catch::Contains("gathers travel") && Catch::Contains("rank 0") && Catch::Contains("rank 1"));
}

}  // namespace zs::test::compressed_test
