// [tensor], other keys and the number of ranks.
#include <catch2/catch.hpp>

#include <algorithm>

#include "model/train/config/config_tensor.h"
#include "model/train/session/session.h"
#include "tests/train/config_text.h"

namespace tensor_config_test {

using namespace zs;
using namespace zs::test;

TEST_CASE("0-3: products over ranks are refused where these cannot be cut, or keys do not go with it") {
  const auto problem = [](std::vector<std::string> overrides, const std::string& preset = "llama-tiny") {
    overrides.insert(overrides.begin(), {"model.preset=" + preset, "tensor.parallel=2"});
    const auto problems = problems_of(kSmall, overrides);
    return problems.empty() ? std::string() : std::string(problems[0].what_happened());
  };
  CHECK(problem({}).empty());
  CHECK(problem({}, "tiny").empty());
  CHECK(problem({"tensor.parallel=0"}).starts_with("tensor.parallel is 0"));
  CHECK(problem({"model.heads=3", "model.kv_heads=1", "model.width=96"}) ==
        "tensor.parallel = 2 does not divide model.heads = 3");
  CHECK(problem({"model.kv_heads=1"}) == "tensor.parallel = 2 does not divide model.kv_heads = 1");
  CHECK(problem({"model.hidden=129"}) == "tensor.parallel = 2 does not divide model.hidden = 129");
  CHECK(problem({"tensor.parallel=3", "model.heads=3", "model.kv_heads=3", "model.width=96", "model.hidden=96"}) ==
        "tensor.parallel = 3 does not divide model.vocab = 256, which is stored as 256");
  CHECK(problem({}, "mixtral-8x7B") == "tensor.parallel = 2 does not go with model.experts: experts are not cut");
  const std::vector<std::pair<std::vector<std::string>, std::string>> conflicts{
      {{"model.attention_dropout=0.1"}, "model.attention_dropout, whose draws are not those of one rank"},
      {{"model.dropout=0.1"}, "model.attention_dropout, whose draws are not those of one rank"},
      {{"train.deterministic=true"}, "train.deterministic"},
      {{"train.optimizer=muon"}, "train.optimizer \"muon\", which takes parameters as a whole"},
      {{"train.optimizer=adamw8bit"}, "train.optimizer \"adamw8bit\", which takes parameters as a whole"},
      {{"lora.rank=2"}, "lora.rank: adapters are not cut"},
      {{"shard.compress_gather=int8"}, "shard.compress_gather, which rounds what ranks have alike otherwise on each"},
      {{"shard.compress_reduce=int8"}, "shard.compress_reduce, which rounds what ranks have alike otherwise on each"},
      {{"plan.apply=blocks.*"}, "plan.apply: a plan's units are whole"},
      {{"device=cuda"}, "device = \"cuda\""}};
  for (auto [overrides, with] : conflicts) {
    overrides.insert(overrides.begin(), "tensor.parallel=2");
    std::vector<std::string> found;  // some need other keys, too, which are not given here
    for (const Error& one : problems_of(kSmall, overrides)) found.emplace_back(one.what_happened());
    CHECK_THAT(found, Catch::Matchers::VectorContains("tensor.parallel = 2 does not go with " + with));
  }
  CHECK(problem({"model.dropout=0.1", "model.attention_dropout=0"}, "tiny").empty());
  const auto with = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all{"model.preset=llama-tiny", "tensor.parallel=2", "train.global_batch=4"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_config(kSmall, "small.toml", all);
  };
  CHECK_NOTHROW(check_ranks(with({"train.micro_batch=1"}), 8));
  CHECK_THROWS_WITH(check_ranks(with({"train.micro_batch=1"}), 10),
                    "train.global_batch 4 in micro-batches of 1 is too small for 10 ranks, 2 of which read the same "
                    "samples: use 5 or more, at most 8 ranks");
  CHECK_THROWS_WITH(check_ranks(with({}), 3), "tensor.parallel 2 does not divide the job's 3 ranks: use one of 1, 3");
  CHECK_THROWS_WITH(check_ranks(with({"shard.strategy=hsdp", "shard.group_size=3"}), 6),
                    "tensor.parallel 2 does not divide shard.group_size 3: use groups of a multiple of it");
}

TEST_CASE("0-3, 2B-5: both groups of a nest are cut by the axis of products, and the rest by none") {
  const auto groups = [](int tensor, int rank, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(),
                     {"model.preset=llama-tiny", "train.global_batch=64", fmt::format("tensor.parallel={}", tensor)});
    const Config config = parse_config(kSmall, "small.toml", overrides);
    const ShardOptions options = shard_options(config, 16);
    const SubGrid cut = RankGrid(options.grid, rank, 16).sub_grid(tensor > 1 ? MeshAxes{kTensorAxis} : MeshAxes{});
    const ShardScheme scheme(options.scheme, cut);
    return std::pair(scheme.ranks_over(scheme.master), scheme.ranks_over(scheme.runtime));
  };
  using Ranks = std::vector<int>;
  const std::vector<std::string> nested{"shard.strategy=nested", "shard.group_size=8"};
  const auto sorted = [](Ranks ranks) {
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  };
  const auto [masters, runtime] = groups(2, 5, nested);
  CHECK(sorted(masters) == Ranks{1, 3, 5, 7, 9, 11, 13, 15});
  CHECK(runtime == Ranks{1, 3, 5, 7});
  const std::vector<std::string> eighths{"shard.strategy=nested", "shard.group_size=8", "model.heads=8",
                                         "model.kv_heads=8"};
  CHECK(groups(8, 5, eighths).second == Ranks{5});
  CHECK(sorted(groups(8, 5, eighths).first) == Ranks{5, 13});
  CHECK(sorted(groups(1, 5, nested).first).size() == 16);
  CHECK(groups(1, 5, nested).second == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  const Config config = parse_config(kSmall, "small.toml", {"model.preset=llama-tiny", "tensor.parallel=2"});
  for (int rank = 0; rank < 8; ++rank)
    CHECK(data_share_of(config, rank, 8) == RankGrid(tensor_grid(config, 8), rank, 8).data_share());
  CHECK(data_share_of(config, 0, 1) == DataShare(0, 1));
  const RankGrid grid(tensor_grid(config, 8), 5, 8);
  CHECK(with_host_groups({.strategy = Strategy::nested}, {0, 0, 0, 0, 1, 1, 1, 1}, grid).group_size == 2);
  CHECK(groups(2, 5, {"shard.strategy=zero1"}).first == Ranks{1, 3, 5, 7, 9, 11, 13, 15});
}

}  // namespace tensor_config_test
