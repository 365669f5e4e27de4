// Inputs of recomputed blocks that the host keeps between forward and backward.
#include "runtime/shard/offload/activation_store.h"

#include <catch2/catch.hpp>

#include "model/train/plan/memory_check.h"
#include "model/train/plan/plan.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::activation_store_test {
namespace {

constexpr std::int64_t kBlocks = 6;

Config config_of(const std::vector<std::string>& recompute, const std::string& place) {
  Config config = tiny_config();
  config.model.layers = kBlocks;
  config.train.global_batch = 8;
  config.train.micro_batch = 2;
  config.train.recompute = recompute;
  config.offload.activations = place;
  return config;
}

/// Of one block, what it keeps.
std::int64_t input_bytes(const Config& config) {
  return config.train.micro_batch * config.train.sequence * config.model.width *
         size_of(config.precision.param == "bf16" ? DType::bf16 : DType::f32);
}

std::int64_t copies(const std::vector<TraceEntry>& trace, const std::string& name) {
  return std::count_if(trace.begin(), trace.end(), [&](const TraceEntry& entry) {
    return entry.kind == TraceEntry::Kind::op && entry.op.name == name;
  });
}

}  // namespace

TEST_CASE(
    "inputs of blocks that the host keeps change no bit, in the memory of the plan, and every access is ordered") {
  const int ranks = GENERATE(1, 2);
  const std::string param = GENERATE(as<std::string>{}, "f32", "bf16");
  if (is_thinned_out()) return;
  for (const std::vector<std::string>& recompute :
       {std::vector<std::string>{"block"}, {"blocks.{0-3}=block", "blocks.4=attention"}}) {
    Config usual_config = config_of(recompute, "device"), config = config_of(recompute, "host");
    for (Config* const one : {&usual_config, &config}) {
      one->precision.param = param;
      one->shard.strategy = ranks == 1 ? "zero3" : "zero2";
      if (ranks == 2) one->shard.reshard_after_forward = false;
    }
    CAPTURE(ranks, param, recompute);
    const TinyResult usual = train_tiny(usual_config, {.ranks = ranks}), run = train_tiny(config, {.ranks = ranks});
    CHECK(run.losses == usual.losses);
    CHECK(run.grad_norms == usual.grad_norms);
    CHECK(run.weights == usual.weights);
    const TrainPlan plan = make_plan(config, 0, ranks);
    const std::int64_t whole = recompute.front() == "block" ? kBlocks : 4;
    CHECK(plan.host_bytes == (whole - 2) * input_bytes(config));
    CHECK(plan.host_by_kind.at("activation") == plan.host_bytes);
    for (const std::int64_t bytes : run.host_bytes) CHECK(bytes == plan.host_bytes);
    for (const std::int64_t peak : run.peak_bytes) CHECK(peak == plan.step_peak_bytes);
    CHECK(run.allocations == std::vector<std::int64_t>{2, 0, 0});
    CHECK(verify_order(run.trace).empty());
    const std::int64_t micro_batches = config.train.global_batch / config.train.micro_batch / ranks;
    CHECK(copies(run.trace, "store_to_host:activation") == (whole - 2) * micro_batches);
    CHECK(copies(run.trace, "load_from_host:activation") == (whole - 2) * micro_batches);
  }
}

TEST_CASE("delays, poisoned memory and what else the host keeps change no bit of a step whose inputs it keeps") {
  Config config = config_of({"block"}, "device");
  config.precision.param = "bf16";
  const TinyResult usual = train_tiny(config, {.ranks = 2});
  config.offload.activations = config.offload.weights = config.offload.gradients = config.offload.moments = "host";
  CHECK(train_tiny(config, {.ranks = 2, .perturb_seed = 1}).weights == usual.weights);
  CHECK(train_tiny(config, {.ranks = 2, .follows_plan = false}).weights == usual.weights);
  config.offload.cpu_link_gbs = 0.05;  // compute waits
  CHECK(train_tiny(config, {.ranks = 2}).weights == usual.weights);
}

TEST_CASE("a block's input is not on the device between the forward of the next block and the backward of that") {
  const auto activations = [](std::int64_t blocks, const char* place) {
    Config config = config_of({"block"}, place);
    config.model.layers = blocks;
    return make_plan(config, 0, 1).at_peak.at("activation");
  };
  const std::int64_t input = input_bytes(config_of({"block"}, "host"));
  CHECK(activations(10, "device") == activations(6, "device") + 4 * input);
  CHECK(activations(10, "host") == activations(6, "host"));
  CHECK(activations(6, "host") < activations(6, "device"));
}

TEST_CASE("a copy starts behind the forward that reads it, and comes back ahead of its backward") {
  Config config = config_of({"block"}, "host");
  config.train.global_batch = config.train.micro_batch;
  const TrainPlan plan = make_plan(config, 0, 1);
  const auto nth = [&](const std::string& name, std::int64_t n) {
    for (std::size_t i = 0; i < plan.trace.size(); ++i)
      if (plan.trace[i].kind == TraceEntry::Kind::op && plan.trace[i].op.name == name && n-- == 0)
        return static_cast<std::int64_t>(i);
    return std::int64_t{-1};
  };
  // Forward has an attention for each block, and each backward makes it once more.
  for (std::int64_t block = 0; block < kBlocks - 2; ++block) {
    CAPTURE(block);
    CHECK(nth("store_to_host:activation", block) > nth("attention", block));
    CHECK(nth("store_to_host:activation", block) < nth("attention", block + 1));
    const std::int64_t again = 2 * kBlocks - 1 - block, load = nth("load_from_host:activation", kBlocks - 3 - block);
    REQUIRE(load >= 0);
    CHECK(load < nth("attention", again - 1));
    CHECK(load > nth("attention", again - 2));
  }
}

TEST_CASE("a run that lacks the device's memory is told that the host can keep the inputs of its blocks") {
  Config config = config_of({"block"}, "device");
  config.train.micro_batch = 1;
  config.train.optimizer = "sgd";
  config.offload.device_mib = 1;
  const MemoryDemand demand{config, {.ranks = 1}, 1};
  config.offload.activations = "host";
  const std::int64_t room = make_plan(config, 0, 1).reserved_bytes;
  REQUIRE(make_plan(demand.config, 0, 1).reserved_bytes > room);
  const std::vector<MemoryBudget> budgets{{room, true, "offload.device_mib", MemoryBudget::Of::device, true}};
  const MemoryChange least = least_memory(demand);
  CHECK(least.demand.config.offload.activations == "host");
  CHECK(exceeded(least.demand, least.bytes(), budgets) == nullptr);
}

}  // namespace zs::test::activation_store_test
