// Ranks that choose the algorithms of their products by time (cuda.tune_products), on emulated GPUs.
#include <catch2/catch.hpp>

#include "model/train/plan/plan.h"
#include "model/train/run_dir/weights.h"
#include "tests/shard/gpu_ranks.h"

namespace zs::test::cuda_tuning_test {
namespace {

constexpr int kSteps = 4, kCandidates = 4;
/// Of the products that the first rank is fast by; and what all others take there, which outweighs all that another
/// rank's products add to the only clock of the emulated GPUs.
constexpr int kFastest = 2;
constexpr double kSlow_ms = 1e6;

/// What a training leaves on one rank.
struct RankRun {
  std::vector<float> losses = {};
  std::string weights = {}, chosen = {};
  std::vector<std::string> messages = {};       // after each step
  std::vector<std::vector<int>> products = {};  // the same, of each candidate so far

  /// Those of the steps behind the first, or of all steps.
  std::vector<int> products_after(std::size_t step) const {
    std::vector<int> counts = products.back();
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] -= step == 0 ? 0 : products[step - 1][i];
    return counts;
  }
};

Config tuned(int ranks) {
  Config config = small_config(ranks);
  config.cuda.tune_products = true;
  return config;
}

RankRun train(GpuMachine& machine, World& world, CudaDevice& device, const TrainPlan& plan, const Config& config,
              const std::string& saved) {
  RankRun run;
  Session session(device, world, config);
  plan.apply_order(session.runtime());
  session.products().restore(saved);
  run.messages.push_back(session.products().take_message());
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    session.enqueue_step(step, 1e-2f, tiny_samples(config), false);
    const StepResult result = session.finish_step();
    if (result.peak_bytes != plan.step_peak_bytes)
      throw std::runtime_error(fmt::format("{} bytes, planned were {}", result.peak_bytes, plan.step_peak_bytes));
    run.losses.insert(run.losses.end(), result.losses.begin(), result.losses.end());
    run.messages.push_back(session.products().take_message());
    std::vector<int> counts;
    for (int candidate = 0; candidate < kCandidates; ++candidate)
      counts.push_back(machine.emulated_cublas()->products_by(candidate, world.rank()));
    run.products.push_back(counts);
  }
  if (config.cuda.graph && session.replay()->replays() != kSteps - 1)
    throw std::runtime_error("steps are not replayed");
  run.chosen = session.products().chosen();
  run.weights = save_weights(session.runtime().executor());
  return run;
}

/// By rank; `saved`: what a rank takes for an earlier run's choices.
std::vector<RankRun> train(GpuMachine& machine, int ranks, const Config& config,
                           const std::vector<std::string>& saved = {}) {
  machine.emulated_cublas()->know_candidates(
      kCandidates, [](int gpu, int candidate) { return gpu == 0 && candidate != kFastest ? kSlow_ms : 1.0; });
  std::vector<RankRun> runs(static_cast<std::size_t>(ranks));
  machine.run(config, Transport::nccl, [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    const auto rank = static_cast<std::size_t>(world.rank());
    runs[rank] = train(machine, world, device, plan, config, saved.empty() ? "" : saved[rank]);
  });
  return runs;
}

std::vector<RankRun> train(int ranks, const Config& config, const std::vector<std::string>& saved = {}) {
  GpuMachine machine(ranks);
  auto runs = train(machine, ranks, config, saved);
  CHECK(machine.live_handles() == 0);
  return runs;
}

/// In all steps but those before `step` every product is by the candidate that is the first rank's fastest.
void check_is_fastest_after(std::size_t step, const RankRun& run) {
  const std::vector<int> products = run.products_after(step);
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    CAPTURE(candidate);
    CHECK((products[static_cast<std::size_t>(candidate)] > 0) == (candidate == kFastest));
  }
}

}  // namespace

TEST_CASE(
    "from the second step on all ranks compute products by what was fastest on the first one, in the memory of the "
    "plan") {
  const int ranks = GENERATE(1, 2);
  const bool is_graph = GENERATE(false, true);
  Config config = tuned(ranks);
  config.cuda.graph = is_graph;
  Config untimed = config;
  untimed.cuda.tune_products = false;
  const std::vector<RankRun> runs = train(ranks, config), expected = train(ranks, untimed);
  for (const RankRun& run : runs) {
    CHECK(run.losses == expected[0].losses);  // emulated candidates differ in nothing but time
    CHECK(run.weights == expected[0].weights);
    CHECK(run.products[0][0] > run.products[0][kFastest]);
    check_is_fastest_after(1, run);
    CHECK(run.chosen == runs[0].chosen);
    CHECK_THAT(run.messages[1],
               Catch::StartsWith("products: ") && Catch::Contains(" by another algorithm than cuBLASLt's"));
    CHECK(run.messages[0] + run.messages[2] + run.messages[3] == "");
  }
  CHECK_THAT(runs[0].chosen, Catch::StartsWith("Emulated, cuBLASLt 130200\n"));
  CHECK(expected[0].chosen.empty());
  for (const std::string& message : expected[0].messages) CHECK(message.empty());
}

TEST_CASE("a run that goes on computes its first step by the choices that were saved, and times nothing") {
  const int ranks = GENERATE(1, 2);
  const Config config = tuned(ranks);
  const std::string chosen = train(ranks, config)[0].chosen;
  for (const RankRun& run : train(ranks, config, {chosen, chosen})) {
    check_is_fastest_after(0, run);
    CHECK(run.chosen == chosen);
    CHECK_THAT(run.messages[0], Catch::StartsWith("products as in the checkpoint: "));
    CHECK(run.messages[1].empty());
  }
}

TEST_CASE("a run that goes on with other micro-batches times the products that these bring") {
  const int ranks = GENERATE(1, 2);
  Config config = tuned(ranks);
  const std::string chosen = train(ranks, config)[0].chosen;
  config.train.micro_batch *= 2;
  config.train.global_batch *= 2;
  const std::vector<RankRun> runs = train(ranks, config, {chosen, chosen});
  for (const RankRun& run : runs) {
    CHECK_THAT(run.messages[0], Catch::StartsWith("products as in the checkpoint: "));
    CHECK_THAT(run.messages[1], Catch::StartsWith("products: "));
    CHECK(run.products[0][0] > 0);
    check_is_fastest_after(1, run);
    CHECK(run.chosen != chosen);
    CHECK(run.chosen == runs[0].chosen);
  }
}

TEST_CASE("choices that are for another GPU or library than some rank's are not used, which a line says") {
  const int odd_one = GENERATE(0, 1);
  const Config config = tuned(2);
  std::vector<std::string> saved(2, train(2, config)[0].chosen);
  saved[static_cast<std::size_t>(odd_one)].insert(0, "Another ");
  for (const RankRun& run : train(2, config, saved)) {
    CHECK_THAT(run.messages[0],
               Catch::StartsWith("products are timed again, not as in the checkpoint: those are for ") &&
                   Catch::EndsWith(fmt::format("rank {} has Emulated, cuBLASLt 130200", odd_one)));
    CHECK_THAT(run.messages[1], Catch::StartsWith("products: "));
    CHECK(run.products[0][0] > 0);
    check_is_fastest_after(1, run);
  }
}

TEST_CASE("where a rank has another library than the first one, all ranks keep cuBLASLt's first algorithms") {
  GpuMachine machine(2);
  auto other = std::make_shared<CublasLt>(*machine.emulated_cublas()->table());
  other->version = [] { return std::size_t{130300}; };
  machine.give_others(other);
  for (const RankRun& run : train(machine, 2, tuned(2))) {
    CHECK(
        run.messages[1] ==
        "products by cuBLASLt's first algorithms, not by the fastest: those are for Emulated, cuBLASLt 130200, rank 1 "
        "has Emulated, cuBLASLt 130300");
    CHECK(run.chosen.empty());
    const std::vector<int> products = run.products_after(1);
    CHECK(products[0] > 0);
    CHECK(products[1] + products[kFastest] + products[3] == 0);
  }
}

}  // namespace zs::test::cuda_tuning_test
