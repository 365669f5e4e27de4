// Units of several blocks: the bits, the schedule, the memory and the checkpoints of units of one.
#include <catch2/catch.hpp>

#include <array>
#include <filesystem>
#include <functional>
#include <map>

#include "model/train/plan/plan.h"
#include "model/train/session/session.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::merged_units_test {
namespace {

constexpr int kRanks = 4;

Config six_blocks(const std::string& family = "gpt2") {
  Config config = tiny_config();
  choose_family(config, family);
  config.model.layers = 6;
  config.model.width = 16;
  config.model.context = config.train.sequence = 8;
  return config;
}

/// Units of so many blocks each, where that divides six.
void merge(Config& config, int blocks) {
  const TrainPlan plan = make_plan(config, {.ranks = kRanks});
  const std::int64_t bytes = plan.units.at(1).layout->numel() * (config.precision.param == "bf16" ? 2 : 4) * blocks;
  config.shard.unit_mib = static_cast<double>(bytes) / (1 << 20);
}

std::vector<std::string> unit_names_of(const TrainPlan& plan) {
  std::vector<std::string> names;
  for (const TrainPlan::Unit& unit : plan.units) names.push_back(unit.name);
  return names;
}

struct Way {
  std::string name;
  std::function<void(Config& config)> choose;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = [] {
    std::vector<Way> list = {
        {"no prefetch", [](Config& config) { config.shard.prefetch = 0; }},
        {"prefetch 2", [](Config& config) { config.shard.prefetch = 2; }},
        {"a limit above the prefetch", [](Config& config) { config.shard.limit = 3; }},
        {"all resharded", [](Config& config) { config.shard.keep_root_unsharded = false; }},
        {"kept for backward", [](Config& config) { config.shard.reshard_after_forward = false; }},
        {"blocks run again", [](Config& config) { config.train.recompute = {"block"}; }},
        {"attention runs again, all resharded",
         [](Config& config) { config.train.recompute = {"attention"}, config.shard.keep_root_unsharded = false; }},
        {"one reduction in flight", [](Config& config) { config.shard.max_reductions_in_flight = 1; }},
    };
    for (const std::string& name : scheme_names())
      list.push_back({name, [name](Config& config) { choose_scheme(config, scheme_of(name, kRanks)); }});
    return list;
  }();
  return all;
}

/// Of one rank and a unit for each block.
const TinyResult& reference(const std::string& family, const std::string& param) {
  static std::map<std::string, TinyResult> results;
  const std::string key = family + param;
  if (results.count(key) == 0) {
    Config config = six_blocks(family);
    config.precision.param = param;
    results[key] = train_tiny(config, {.is_calm = true});
  }
  return results.at(key);
}

bool is_same_run(const TinyResult& a, const TinyResult& b) {
  return a.losses == b.losses && a.grad_norms == b.grad_norms && a.weights == b.weights;
}

}  // namespace

TEST_CASE("I1, I4: units of several blocks train to the same bits as units of one, in the memory of their plan") {
  const std::size_t number = GENERATE(range(std::size_t{0}, ways().size()));
  if (is_thinned_out()) return;
  const Way& way = ways()[number];
  const std::string family = number % 3 == 0 ? "llama" : "gpt2", param = number % 4 < 2 ? "f32" : "bf16";
  Config config = six_blocks(family);
  config.precision.param = param;
  way.choose(config);
  const std::string layout = layout_names()[number % layout_names().size()];
  choose_layout(config, layout);
  const int blocks = std::array{2, 3, 6}[number % 3];
  merge(config, blocks);
  CAPTURE(way.name, family, param, layout, blocks);
  const TrainPlan plan = make_plan(config, 0, kRanks);
  CHECK(std::ssize(plan.units) == 1 + 6 / blocks);
  const TinyResult run = train_tiny(config, {.ranks = kRanks});
  CHECK(is_same_run(run, reference(family, param)));
  for (const std::int64_t peak : run.peak_bytes) CHECK(peak == plan.step_peak_bytes);
  CHECK(run.allocations == std::vector<std::int64_t>{1, 0, 0});
}

TEST_CASE("without a plan's order too, units of several blocks train to the same bits") {
  Config config = six_blocks();
  merge(config, 2);
  CHECK(is_same_run(train_tiny(config, {.ranks = 2, .follows_plan = false}), reference("gpt2", "f32")));
}

TEST_CASE("units of two blocks are gathered, freed and reduced as those of a model with half as many") {
  const Way& way = ways()[GENERATE(range(std::size_t{0}, ways().size()))];
  if (is_thinned_out()) return;
  Config half = six_blocks();
  half.model.layers = 3;
  half.train.deterministic = false;
  half.train.global_batch = 3 * kRanks;
  way.choose(half);
  Config config = half;
  config.model.layers = 6;
  merge(config, 2);
  CAPTURE(way.name);
  const TrainPlan plan = make_plan(config, {.ranks = kRanks}), expected = make_plan(half, {.ranks = kRanks});
  CHECK(unit_names_of(plan) == std::vector<std::string>{"root", "blocks.0-1", "blocks.2-3", "blocks.4-5"});
  CHECK_FALSE(plan.micro_batch.empty());
  CHECK(plan.micro_batch == expected.micro_batch);
}

TEST_CASE("I2: checkpoints go on bit for bit in units of another size") {
  const TempDir folder;
  const Config one = six_blocks();
  Config two = one, three = one;
  merge(two, 2);
  merge(three, 3);
  const auto saved = [&](const Config& config, int ranks, const char* name) {
    return train_tiny(config, {.ranks = ranks, .steps = 2, .checkpoints = folder / name}).saved;
  };
  const std::string of_two = saved(two, 3, "two"), of_one = saved(one, 2, "one");
  const auto is_the_rest = [&](const Config& config, int ranks, const std::string& from) {
    const TinyResult rest = train_tiny(config, {.ranks = ranks, .resume = from});
    const TinyResult& whole = reference("gpt2", "f32");
    return rest.weights == whole.weights &&
           rest.losses == std::vector<float>(whole.losses.end() - 24, whole.losses.end());
  };
  CHECK(is_the_rest(one, 2, of_two));
  CHECK(is_the_rest(three, 2, of_two));
  CHECK(is_the_rest(two, 4, of_one));
}

TEST_CASE("I2: one rank's checkpoint is the same files however many blocks a unit has") {
  const TempDir folder;
  const auto files = [&](int blocks) {
    Config config = six_blocks();
    if (blocks > 1) merge(config, blocks);
    const std::string saved = train_tiny(config, {.steps = 1, .checkpoints = folder / fmt::format("{}", blocks)}).saved;
    std::map<std::string, std::string> contents;
    for (const auto& entry : std::filesystem::directory_iterator(saved)) {
      contents[entry.path().filename().string()] = read_file(entry.path().string());
    }
    return contents;
  };
  const auto separate = files(1);
  CHECK(separate.size() > 1);
  CHECK(files(2) == separate);
  CHECK(files(6) == separate);
}

TEST_CASE("without being told, blocks share units of 64 MiB between ranks over NCCL, and nowhere else") {
  Config config = six_blocks();
  config.model.layers = 12;
  config.model.heads = 12;
  config.model.width = 768;
  config.train.global_batch = 8;
  config.precision.param = "bf16";
  const auto names = [&](Transport transport, int ranks) {
    return unit_names_of(make_plan(config, {.ranks = ranks, .device = DeviceKind::cuda, .transport = transport}));
  };
  CHECK(names(Transport::nccl, 8) == std::vector<std::string>{"root", "blocks.0-5", "blocks.6-11"});  // 81 MiB each
  CHECK(names(Transport::staged, 8).size() == 13);
  CHECK(names(Transport::nccl, 1).size() == 13);
  config.precision.param = "f32";
  CHECK(names(Transport::nccl, 8) ==
        std::vector<std::string>{"root", "blocks.0-2", "blocks.3-5", "blocks.6-8", "blocks.9-11"});
  config.shard.unit_mib = 0;
  CHECK(names(Transport::nccl, 8).size() == 13);
  config.shard.unit_mib = 100000;
  const TrainPlan all = make_plan(config, {.ranks = 2});
  CHECK(unit_names_of(all) == std::vector<std::string>{"root", "blocks.0-11"});
  CHECK_THAT(describe(all, config, 2), Catch::Contains("\nblocks.0-11          144      85054464"));
}

}  // namespace zs::test::merged_units_test
