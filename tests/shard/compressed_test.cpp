#include <catch2/catch.hpp>

#include <cmath>
#include <numeric>

#include "model/train/plan/plan.h"
#include "tests/shard/tiny_training.h"

namespace zs::test {
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
  constexpr int kSteps = 8;
  const TinyOptions options{.ranks = kRanks, .steps = kSteps};
  const TinyResult exact = train_tiny(compressed(strategy, "none", "none"), options);
  for (const auto& [gather, reduce] :
       {std::pair("int8", "none"), std::pair("none", "int8"), std::pair("int8", "int8")}) {
    CAPTURE(strategy, gather, reduce);
    const Config config = compressed(strategy, gather, reduce);
    const TinyResult packed = train_tiny(config, options);
    CHECK(packed.weights != exact.weights);
    CHECK(train_tiny(config, options).weights == packed.weights);
    const std::ptrdiff_t last = std::ssize(packed.losses) - 2 * kRanks;
    CHECK(mean(packed.losses, last) <
          mean(packed.losses, 0) - 0.5f * (mean(exact.losses, 0) - mean(exact.losses, last)));
    // Weights of 0.02 with errors of at most 1/254 of the largest of 256: logits of a tiny model move by less than a
    // hundredth.
    CHECK(std::fabs(mean(packed.losses, 0) - mean(exact.losses, 0)) < 0.01f);
    if (gather == std::string("none")) CHECK(mean(packed.losses, 0) == mean(exact.losses, 0));
  }
}

TEST_CASE("master weights are saved exactly, whatever travels") {
  const TinyOptions untrained{.ranks = kRanks, .steps = 0};
  CHECK(train_tiny(compressed("nested", "int8", "int8"), untrained).weights ==
        train_tiny(compressed("nested", "none", "none"), untrained).weights);
}

TEST_CASE("I4: staging for what travels packed is planned and counted") {
  const std::string strategy = GENERATE("zero3", "nested");
  const Config config = compressed(strategy, "int8", "int8");
  const TrainPlan plan = make_plan(config, {.ranks = kRanks}),
                  plain = make_plan(compressed(strategy, "none", "none"), {.ranks = kRanks});
  const TinyResult run = train_tiny(config, {.ranks = kRanks});
  for (const std::int64_t bytes : run.peak_bytes) CHECK(bytes == plan.step_peak_bytes);
  const auto scratch = [](const TrainPlan& one, StreamRole stream) {
    return one.scratch_bytes[static_cast<std::size_t>(stream)];
  };
  CHECK(scratch(plan, StreamRole::unshard) > scratch(plain, StreamRole::unshard));
  CHECK(scratch(plan, StreamRole::reduce) > scratch(plain, StreamRole::reduce));
}

}  // namespace zs::test
