#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "model/train/plan/plan.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::memory_plan_test {
namespace {

using Kind = TraceEntry::Kind;

bool is_memory(const TraceEntry& entry) { return entry.kind == Kind::acquire || entry.kind == Kind::release; }

Config accumulating_config(int ranks) {
  Config config = tiny_config();
  config.train.global_batch = 5 * ranks;
  return config;
}

/// Live bytes of the table by kind.
std::map<std::string, std::int64_t> by_label(const std::vector<PlannedBuffer>& buffers, std::int64_t moment) {
  std::map<std::string, std::int64_t> bytes;
  for (const PlannedBuffer& buffer : buffers)
    if (buffer.is_live_at(moment)) bytes[buffer.label] += buffer.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("I4: counted bytes of every step equal the plan", "[plan]") {
  const int ranks = GENERATE(1, 2, 4);
  Config config = tiny_config();
  choose_family(config, GENERATE(as<std::string>{}, "gpt2", "llama", "qwen3", "qwen3_moe"));
  config.shard.reshard_after_forward = GENERATE(true, false);
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  const TinyResult run = train_tiny(config, {.ranks = ranks});
  const std::int64_t planned = make_plan(config, 0, ranks).step_peak_bytes;
  CAPTURE(ranks, config.shard.reshard_after_forward, config.precision.param);
  CHECK(planned > 0);
  for (const std::int64_t peak : run.peak_bytes) CHECK(peak == planned);
}

TEST_CASE("I4: matrices that a parameter is made of are planned and counted one by one, at any number of ranks",
          "[plan]") {
  Config config = tiny_config();
  choose_family(config, "llama");
  config.train.optimizer = "muon";
  config.train.momentum = 0.95;
  config.train.muon = {"blocks.*", "token_embedding.*"};
  choose_layout(config, GENERATE(as<std::string>{}, "flat", "per_parameter", "last dim"));
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(config.shard.layout, config.shard.dims, ranks);
    config.train.global_batch = 2 * ranks;
    const TinyResult run = train_tiny(config, {.ranks = ranks});
    const TrainPlan first = make_plan(config, 0, ranks);
    std::int64_t most = first.step_peak_bytes;  // ranks own different matrices
    for (int rank = 1; rank < ranks; ++rank) most = std::max(most, make_plan(config, rank, ranks).step_peak_bytes);
    for (const std::int64_t peak : run.peak_bytes) CHECK(peak == most);
    CHECK(run.sent.parameter_bytes() == first.sent.parameter_bytes());
    CHECK(run.sent.gradient_bytes() == first.sent.gradient_bytes());
  }
}

TEST_CASE("the kernels' working memory is in the plan, for as many threads as there are", "[plan]") {
#if defined(__SANITIZE_THREAD__)
  const int threads = 1;  // TSan does not see how a team of OpenMP's waits for each other
#else
  const int threads = GENERATE(1, 2, 3);
#endif
  Config config = tiny_config();
  choose_family(config, GENERATE(as<std::string>{}, "gpt2", "llama"));
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  const TrainPlan plan = make_plan(config, {.threads = threads});
  const std::int64_t tokens = config.train.micro_batch * config.train.sequence, width = config.model.width;
  const AttentionDims attention{config.train.micro_batch, config.train.sequence, config.model.heads,
                                width / config.model.heads, config.model.kv_heads};
  const KernelScratch& scratch = cpu_kernels().scratch;
  // What the largest layers take.
  std::int64_t needed = scratch.attention(threads, attention);
  needed = std::max(needed, scratch.layer_norm_backward(tokens, width));
  if (config.model.family == "gpt2") needed = std::max(needed, scratch.bias_backward(tokens, 4 * width));
  if (config.model.family == "llama") needed = std::max(needed, scratch.rotary(threads, attention));
  const std::int64_t planned = plan.scratch_bytes[static_cast<std::size_t>(StreamRole::compute)];
  CAPTURE(threads, config.precision.param);
  CHECK(needed > 0);
  CHECK(planned >= needed);
  CHECK(plan.at_peak.at("scratch") >= planned);
  const TinyResult run = train_tiny(config, {.ranks = 1, .threads = threads});
  for (const std::int64_t peak : run.peak_bytes) CHECK(peak == plan.step_peak_bytes);
  CHECK(run.allocation_calls == 1);
}

TEST_CASE("counted bytes do not depend on where the memory comes from", "[plan]") {
  const Config config = accumulating_config(2);
  CHECK(train_tiny(config, {.ranks = 2, .follows_plan = false}).peak_bytes[2] ==
        make_plan(config, 0, 2).step_peak_bytes);
}

TEST_CASE("a run that follows its plan allocates once, before its first step, and never more", "[plan]") {
  const int ranks = GENERATE(1, 2);
  Config config = accumulating_config(ranks);
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  config.shard.prefetch = GENERATE(0, 2);
  config.shard.limit = GENERATE(0, 2, 4);
  config.run.validate_every = 2;
  config.run.validate_batches = 2;
  CAPTURE(ranks, config.precision.param, config.shard.prefetch, config.shard.limit);
  const TinyResult run = train_tiny(config, {.ranks = ranks, .steps = 5});
  CHECK(run.allocations == std::vector<std::int64_t>{1, 0, 0, 0, 0});
  CHECK(run.allocation_calls == 1);
  CHECK(run.reserved_bytes == make_plan(config, 0, ranks).reserved_bytes);
}

TEST_CASE("a run without a plan allocates nothing after its first steps", "[plan]") {
  const int ranks = GENERATE(1, 2);
  Config config = accumulating_config(ranks);
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  config.run.validate_every = 2;
  config.run.validate_batches = 2;
  const TinyResult run = train_tiny(config, {.ranks = ranks, .steps = 6, .follows_plan = false});
  CAPTURE(ranks, config.precision.param, run.allocations);
  CHECK(run.allocations[0] > 10);
  CHECK(std::accumulate(run.allocations.begin() + 3, run.allocations.end(), std::int64_t{0}) == 0);
}

TEST_CASE("the table of a step adds up to the counted bytes at every moment", "[plan]") {
  const int ranks = GENERATE(1, 2, 4);
  Config config = accumulating_config(ranks);
  config.shard.reshard_after_forward = GENERATE(true, false);
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  const TrainPlan plan =
      make_plan(config, {.ranks = ranks, .transport = GENERATE(Transport::local, Transport::mpi, Transport::shm)});
  std::int64_t counted = plan.persistent_bytes, differences = 0, moments = 0;
  for (std::size_t i = 0; i < plan.trace.size(); ++i) {
    if (is_memory(plan.trace[i])) counted = plan.trace[i].live_bytes, ++moments;
    differences += live_bytes_at(plan.buffers, static_cast<std::int64_t>(i)) != counted;
  }
  CHECK(moments > 100);
  CHECK(differences == 0);
  const std::int64_t peak = peak_moment(plan.buffers);
  CHECK(live_bytes_at(plan.buffers, peak) == plan.step_peak_bytes);
  CHECK(by_label(plan.buffers, peak) == plan.at_peak);
}

TEST_CASE("the table says who uses a buffer first and last, and for which unit it is", "[copies]") {
  Config config = accumulating_config(2);
  const TrainPlan plan = make_plan(config, 0, 2);
  const auto name_at = [&](std::int64_t moment) { return plan.trace.at(static_cast<std::size_t>(moment)).op.name; };
  std::int64_t gathered = 0, gradients = 0;
  for (const PlannedBuffer& buffer : plan.buffers) {
    CAPTURE(buffer.label, buffer.owner, buffer.bytes);
    if (buffer.first_use >= 0) {
      CHECK(buffer.acquired <= buffer.first_use);
      CHECK(buffer.first_use <= buffer.last_use);
      CHECK(buffer.last_use < buffer.released);
    }
    if (buffer.label == "full_param") {
      CHECK(name_at(buffer.first_use) == "all_gather:" + buffer.owner);
      ++gathered;
    } else if (buffer.label == "full_grad") {
      CHECK(name_at(buffer.last_use) == "reduce_scatter:" + buffer.owner);
      ++gradients;
    } else if (buffer.label == "moments" || buffer.label == "master") {
      CHECK(name_at(buffer.last_use) == "adamw:" + buffer.owner);
      CHECK(buffer.acquired == 0);
      CHECK(buffer.released == std::ssize(plan.trace));
    } else if (buffer.label == "activation" && buffer.bytes > 64) {
      CHECK(buffer.owner != "");
    }
  }
  const std::int64_t blocks = config.model.layers, micro_batches = gradients / (blocks + 1);
  CHECK(micro_batches >= 2);
  CHECK(micro_batches < 12);
  CHECK(gradients == (blocks + 1) * micro_batches);
  // The root and the last block stay gathered for backward, the root and the first block for the next micro-batch.
  CHECK(gathered == (1 + 1 + 2 * (blocks - 1)) * micro_batches - 2 * (micro_batches - 1));
}

TEST_CASE("a plan that leaves out the micro-batches that repeat has the bytes of them all", "[plan]") {
  const int variant = GENERATE(range(0, 6));
  Config config = tiny_config();
  config.train.global_batch = 2 * (30 + GENERATE(0, 1, 2));
  config.run.validate_every = 1;
  switch (variant) {
    case 0: config.precision.param = "bf16"; break;
    case 1: config.shard.reshard_after_forward = false; break;
    case 2: config.shard.max_reductions_in_flight = 4; break;
    case 3:
      config.train.deterministic = false;
      config.shard.reduce_every_micro_batch = false;
      break;
    case 4: config.shard.prefetch = 3; break;
    default: config.shard.units = "model"; break;
  }
  CAPTURE(variant);
  const TrainPlan part = make_plan(config, {.ranks = 2}),
                  whole = make_plan(config, {.ranks = 2, .has_every_micro_batch = true});
  CHECK(part.trace.size() < whole.trace.size());
  CHECK(part.step_peak_bytes == whole.step_peak_bytes);
  CHECK(part.at_peak == whole.at_peak);
  CHECK(part.peak_bytes == whole.peak_bytes);
  // Where places take longer to repeat than a plan looks, the rest may need a little more.
  CHECK(part.reserved_bytes <= whole.reserved_bytes);
  CHECK(static_cast<double>(part.reserved_bytes) > 0.98 * static_cast<double>(whole.reserved_bytes));
}

TEST_CASE("the meta device's trace of a step is the real one's", "[plan]") {
  Config config = tiny_config();
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  const bool is_mixture = GENERATE(false, true);  // its metrics are read while the device works: blocks wait elsewhere
  if (is_mixture) choose_family(config, "gpt_oss");
  CAPTURE(is_mixture);
  std::vector<TraceEntry> planned = make_plan(config, {.ranks = 2, .has_every_micro_batch = true}).trace,
                          real = train_tiny(config, {.ranks = 2}).trace;
  const auto is_left_out = [=](const TraceEntry& entry) {
    return entry.kind == Kind::sync || (is_mixture && entry.kind == Kind::wait);
  };
  std::erase_if(planned, is_left_out);
  std::erase_if(real, is_left_out);
  REQUIRE(planned.size() == real.size());
  for (std::size_t i = 0; i < planned.size(); ++i) {
    CAPTURE(i);
    REQUIRE(planned[i].kind == real[i].kind);
    REQUIRE(planned[i].stream == real[i].stream);
    REQUIRE(planned[i].op.name == real[i].op.name);
    REQUIRE(planned[i].live_bytes == real[i].live_bytes);
    REQUIRE(planned[i].owner == real[i].owner);
  }
}

TEST_CASE("the page of a plan whose parameters are cut one by one names each one's dim, and those that are whole",
          "[plan]") {
  Config config = tiny_config();
  choose_layout(config, "small whole");
  const std::string page = describe(make_plan(config, 0, 3), config, 3, true);
  const auto words_after = [&](const std::string& name) {
    std::istringstream line(page.substr(page.find("  " + name + " ")));
    std::vector<std::string> words;
    for (std::string word; words.size() < 5 && line >> word;) words.push_back(word);
    return words;
  };
  CHECK(words_after("token_embedding.weight") ==
        std::vector<std::string>{"token_embedding.weight", "(128,", "32)", "1", "1408"});
  CHECK(words_after("norm.bias") ==
        std::vector<std::string>{"norm.bias", "(32)", "whole", "32", "blocks.0.norm1.weight"});
}

TEST_CASE("the page of a plan groups the buffers and ends in the peak", "[plan]") {
  const Config config = accumulating_config(2);
  const TrainPlan plan = make_plan(config, 0, 2);
  const std::string page = describe(plan, config, 2), all = describe(plan, config, 2, true);
  CHECK_THAT(page, Catch::Contains("moments     blocks.0-2"));
  Config mixtures = accumulating_config(2);
  choose_family(mixtures, "mixtral");
  const std::string of_experts = describe(make_plan(mixtures, 0, 2), mixtures, 2);
  CHECK_THAT(of_experts, Catch::Contains("moments     blocks.0-2.mlp.experts "));
  CHECK_THAT(of_experts, Catch::Contains("mixtures: 5 experts in 3 layers, 2 of them for each token"));
  CHECK(std::count(page.begin(), page.end(), '\n') < 200);
  CHECK(std::count(all.begin(), all.end(), '\n') ==
        std::count(page.begin(), page.end(), '\n') + std::ssize(plan.buffers) + 3);

  // The rows' last column adds up to the line below them.
  const std::string table = describe_grouped(plan.buffers, plan.trace);
  std::vector<std::int64_t> last_columns;
  for (std::size_t begin = table.find('\n') + 1; begin < table.size(); begin = table.find('\n', begin) + 1) {
    const std::string line = table.substr(begin, table.find('\n', begin) - begin);
    last_columns.push_back(std::stoll(line.substr(line.rfind(' '))));
  }
  CHECK(std::accumulate(last_columns.begin(), last_columns.end() - 1, std::int64_t{0}) == last_columns.back());
  CHECK(last_columns.back() == plan.step_peak_bytes);
}

TEST_CASE(
    "I4: the plan of a GPU has the page-locked memory of the host, of uploads and of each stream's largest operation",
    "[plan]") {
  constexpr int kRanks = 3;
  const Config config = tiny_config();
  const auto plan_over = [&](Transport transport) {
    return make_plan(config, {.ranks = kRanks, .device = DeviceKind::cuda, .transport = transport});
  };
  const TrainPlan staged = plan_over(Transport::staged), nccl = plan_over(Transport::nccl);
  const auto of = [](const TrainPlan& plan, StreamRole role) {
    return plan.staging_bytes[static_cast<std::size_t>(role)];
  };
  std::int64_t largest = 0;  // a shard and the whole of it, in f32
  for (const TrainPlan::Unit& unit : staged.units) {
    const UnitLayout& layout = *unit.layout;
    largest = std::max(largest, Pool::rounded(layout.shard_elems() * 4) + Pool::rounded(layout.full_elems() * 4));
  }
  CHECK(of(staged, StreamRole::unshard) == largest);
  CHECK(of(staged, StreamRole::reduce) == largest);
  CHECK(of(nccl, StreamRole::unshard) == 0);
  CHECK(of(nccl, StreamRole::reduce) == 0);
  for (const TrainPlan* const plan : {&staged, &nccl}) {
    const std::int64_t sum =
        std::accumulate(plan->staging_bytes.begin(), plan->staging_bytes.end(), plan->upload_bytes);
    CHECK(plan->pinned_bytes >= sum);
    CHECK(plan->pinned_bytes < sum + kStreamRoles * 4096);  // large blocks begin with a page
    const std::string page = describe(*plan, config, kRanks);
    CHECK_THAT(page, Catch::Contains("page-locked memory of the host, for this rank's GPU\n") &&
                         Catch::Contains(fmt::format("  uploads         {:>16}  ", plan->upload_bytes)) &&
                         Catch::Contains(fmt::format("  compute         {:>16}  ", of(*plan, StreamRole::compute))) &&
                         Catch::Contains(fmt::format("  from the system {:>16}  ", plan->pinned_bytes)));
  }
  DeviceOptions asked;
  staged.create_device({.cpus = {}, .pinned_bytes = 1000}, [&](DeviceKind, const DeviceOptions& options) {
    asked = options;
    return Device::create(DeviceKind::meta, {});
  });
  CHECK(asked.pinned_bytes == staged.pinned_bytes + 1000);  // the caller's own is beside the plan's
  CHECK_THAT(describe(staged, config, kRanks), Catch::Contains(fmt::format("  unshard         {:>16}  ", largest)));
  CHECK_THAT(describe(make_plan(config, 0, kRanks), config, kRanks), !Catch::Contains("page-locked"));
}

}  // namespace zs::test::memory_plan_test
