// The cheapest set of blocks to recompute with which a run fits, against all sets.
#include "model/train/plan/recompute_choice.h"

#include "tests/train/config_text.h"

namespace recompute_choice_test {

using namespace zs;
using namespace zs::test;

namespace {

using Entries = std::vector<std::string>;

MemoryDemand demand(Overrides overrides = {}) {
  const Overrides sizes = {"model.layers=4",       "model.width=64",      "model.heads=2",
                           "model.context=64",     "train.sequence=64",   "train.micro_batch=4",
                           "train.global_batch=8", "run.sample_tokens=0", "shard.zero_copy=off"};
  overrides.insert(overrides.begin(), sizes.begin(), sizes.end());
  return {parse_config(kSmall, "small.toml", overrides), {.ranks = 2}, 2};
}

RankBytes bytes_of(MemoryDemand demand, const RecomputeSet& set) {
  demand.config.train.recompute = set.entries(demand.config.model.layers);
  return make_plan(demand.config, demand.plan).rank_bytes();
}

std::vector<MemoryBudget> budget(std::int64_t rank_bytes) {
  return {{2 * rank_bytes, false, "90 % of physical memory"}};
}

}  // namespace

TEST_CASE("what is recomputed is a word, or patterns with the part of the blocks that match") {
  for (const auto& [value, said] : std::vector<std::pair<std::string, std::string>>{
           {"blocks", "train.recompute has \"blocks\""},
           {"['block', 'none']", "train.recompute has \"block\""},
           {"['auto', 'blocks.0=block']", "train.recompute has \"auto\""},
           {"blocks.0=all", "train.recompute has \"blocks.0=all\""},
           {"blocks.0=auto", "train.recompute has \"blocks.0=auto\""},
           {"=block", "train.recompute has \"=block\""},
           {"blocks.{}=block", "train.recompute: the pattern \"blocks.{}\" has \"{}\""}}) {
    CAPTURE(value);
    CHECK(only_problem(kSmall, {set("train.recompute", value)}).what_happened() == said);
  }
  for (const char* value : {"none", "attention", "block", "auto", "['blocks.0=block', 'blocks.{1-3}=attention']"}) {
    const Config config = parse_config(kSmall, "small.toml", {set("train.recompute", value)});
    CHECK(parse_config(to_toml(config), "small.toml") == config);
  }
}

TEST_CASE("a set is said by words or by patterns of the first blocks") {
  CHECK(RecomputeSet{}.entries(4) == Entries{"none"});
  CHECK(RecomputeSet{.whole = 4}.entries(4) == Entries{"block"});
  CHECK(RecomputeSet{.attention = 4}.entries(4) == Entries{"attention"});
  CHECK(RecomputeSet{.whole = 1}.entries(4) == Entries{"blocks.0=block"});
  CHECK(RecomputeSet{.whole = 2, .attention = 2}.entries(4) == Entries{"blocks.{0-1}=block", "blocks.{2-3}=attention"});
  CHECK(RecomputeSet{.attention = 3}.entries(4) == Entries{"blocks.{0-2}=attention"});
}

TEST_CASE("recomputed FLOPs are those of the products that run again, and of attention's") {
  const MemoryDemand run = demand();
  const RecomputeCost cost = recompute_cost(make_plan(run.config, run.plan), run.config);
  constexpr double kWidth = 64, kSequence = 64;
  CHECK(cost.attention == 2 * 3 * kWidth * kWidth + 2 * kSequence * kWidth);
  CHECK(cost.whole == 2 * (3 + 1 + 4) * kWidth * kWidth + 2 * kSequence * kWidth);
}

TEST_CASE("of all sets of blocks that fit the cheapest is chosen, whatever the limit is") {
  const MemoryDemand run = demand({GENERATE(as<std::string>{}, "model.preset=tiny", "model.preset=llama-tiny")});
  const std::int64_t blocks = run.config.model.layers;
  const RecomputeCost cost = recompute_cost(make_plan(run.config, run.plan), run.config);
  std::vector<std::pair<RecomputeSet, std::int64_t>> all;
  for (std::int64_t whole = 0; whole <= blocks; ++whole)
    for (std::int64_t attention = 0; whole + attention <= blocks; ++attention)
      all.emplace_back(RecomputeSet{whole, attention}, bytes_of(run, {whole, attention}).device);
  const auto cheapest = [&](std::int64_t room) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [set, bytes] : all)
      if (bytes <= room) least = std::min(least, cost.of(set));
    return least;
  };
  for (const auto& [each, room] : all) {
    CAPTURE(each.whole, each.attention, room);
    const RecomputeSet chosen = choose_recompute(run, budget(room));
    CHECK(bytes_of(run, chosen).device <= room);
    CHECK(cost.of(chosen) == cheapest(room));
  }
}

TEST_CASE("nothing is recomputed where all fits, and all where nothing does") {
  const MemoryDemand run = demand();
  CHECK(choose_recompute(run, budget(1 << 30)) == RecomputeSet{});
  CHECK(choose_recompute(run, budget(1 << 10)) == RecomputeSet{.whole = 4});
  CHECK_FALSE(fits(run, {.whole = 4}, budget(1 << 10)));
}

}  // namespace recompute_choice_test
