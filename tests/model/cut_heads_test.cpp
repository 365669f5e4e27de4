// Attention cut by heads, and MLPs by their hidden dim, over ranks which read the same samples, against one rank.
#include <catch2/catch.hpp>

#include "tests/message_of.h"
#include "tests/model/cut_run.h"

namespace zs::test::cut_heads_test {
namespace {

using namespace cut_run;

Dims dims_of(Dims mlp, Dims more = {}) {
  Dims dims{{"*.qkv.*", 0}, {"*.attention.out.weight", 1}};
  dims.insert(dims.end(), mlp.begin(), mlp.end());
  dims.insert(dims.end(), more.begin(), more.end());
  return dims;
}
const Dims kGpt2 = dims_of(kMlp), kGated = dims_of({{"*.gate_up.*", 0}, {"*.down.weight", 1}});

/// Two heads of keys, turned by position, and a gate.
void llama(BlockOptions& block) {
  block.norm = NormKind::rms;
  block.attention.kv_heads = 2;
  block.attention.has_qkv_bias = block.attention.has_bias = block.mlp.has_bias = false;
  block.attention.rotary = RotaryOptions{};
  block.mlp.activation = Activation::swiglu;
}
void qwen3(BlockOptions& block) {
  llama(block);
  block.attention.qk_norm_eps = 1e-6f;
}
void olmo2(BlockOptions& block) {
  qwen3(block);
  block.attention.has_qk_norm_of_all = block.norms_outputs = true;
}

void check_like_one_rank(Job job) {
  job.rate = 0.1f;  // steps of 0.5 make differences of rounding larger than the bound within five
  Job whole = job;
  whole.data = whole.tensor = 1;
  whole.options = {};
  const Weights first = on_ranks(1, [&](World& world) { return Run(world, whole).weights(); }).front();
  const Found alone = run(whole).front();
  for (const Found& found : run(job, &alone, &first)) {
    CAPTURE(job.data, job.tensor, job.recompute, found.seen, alone.seen);
    CHECK(found.begin == 0);
    CHECK(found.end < 1e-5);
    REQUIRE(found.seen.size() == alone.seen.size());
    for (std::size_t i = 0; i < alone.seen.size(); ++i) CHECK(found.seen[i] == Approx(alone.seen[i]).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("attention cut by heads and an MLP by its hidden dim train as one rank's") {
  const ShardOptions by_parameter{.layout = {.layout = Layout::per_parameter}};
  check_like_one_rank({.tensor = 2, .dims = kGpt2});
  check_like_one_rank({.tensor = 4, .recompute = Recompute::attention, .dims = kGpt2});
  check_like_one_rank({.data = 2, .tensor = 2, .options = by_parameter, .dims = kGpt2});
  check_like_one_rank({.tensor = 2, .recompute = Recompute::block, .dims = kGated, .change = llama});
  check_like_one_rank({.data = 2, .tensor = 2, .dims = kGated, .change = llama});
}

TEST_CASE("norms of queries and keys that are cut by heads train as one rank's") {
  check_like_one_rank({.tensor = 2, .dims = kGated, .change = qwen3});
  check_like_one_rank({.tensor = 2,
                       .recompute = Recompute::attention,
                       .dims = dims_of({{"*.gate_up.*", 0}, {"*.down.weight", 1}}, {{"*.?_norm.weight", 0}}),
                       .change = olmo2});
}

TEST_CASE("heads that ranks do not divide, or whose probabilities are dropped, are usage errors") {
  const auto problem = [](Job job) {
    return on_ranks(job.tensor, [&](World& world) { return message_of([&] { Run(world, job).train(1); }); }).front();
  };
  const auto one_key = [](BlockOptions& block) {
    llama(block);
    block.attention.kv_heads = 1;
  };
  CHECK_THAT(problem({.tensor = 2, .dims = kGated, .change = one_key}),
             Catch::Contains("\"blocks.0.attention\" is cut over 2 ranks, and its 4 heads share 1 of keys"));
  CHECK_THAT(
      problem({.tensor = 4,
               .dims = kGated,
               .change =
                   [](BlockOptions& block) {
                     llama(block);
                     block.attention.kv_heads = 1;
                     block.attention.head_dim = 6;
                   }}),
      Catch::Contains("parameter blocks.0.attention.qkv.weight of shape (36, 8) has a block of 6 rows, and so no "
                      "4 equal parts of it"));
  CHECK_THAT(
      problem({.tensor = 2, .dims = kGpt2, .change = [](BlockOptions& block) { block.attention.dropout = 0.5f; }}),
      Catch::Contains("and drops probabilities"));
  CHECK_THAT(problem({.tensor = 2, .dims = kGated, .change = olmo2}),
             Catch::Contains("\"blocks.0.attention.q_norm\" is whole, and the heads that it is of are cut"));
}

}  // namespace zs::test::cut_heads_test
