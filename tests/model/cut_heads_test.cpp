// Attention cut by heads, and MLPs by their hidden dim, over ranks which read the same samples, against one rank.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/nn/tensor_partition.h"
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
void gemma3(BlockOptions& block) {
  qwen3(block);
  block.norm = NormKind::rms_about_one;
  block.attention.qk_norm_offset = 1;
  block.mlp.activation = Activation::geglu_tanh;
  block.norms = NormPlace::both;
}
void olmo2(BlockOptions& block) {
  qwen3(block);
  block.attention.has_qk_norm_of_all = true;
  block.norms = NormPlace::output;
}

void gpt_oss(BlockOptions& block) {
  llama(block);
  block.attention.has_qkv_bias = block.attention.has_bias = block.attention.has_sinks = true;
  block.mlp.activation = Activation::clamped_swiglu;
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

void check_like_one_rank(Job job) {
  job.rate = 0.1f;  // steps of 0.5 make differences of rounding larger than the bound within five
  Job whole = job;
  whole.data = whole.tensor = 1;
  whole.options = {};
  const Weights first = on_ranks(1, [&](World& world) { return Run(world, whole).weights(); }).front();
  const Found alone = run(whole).front();
  const std::vector<Found> ranks = run(job, &alone, &first);
  for (const Found& found : ranks) {
    CHECK(found.whole == ranks.front().whole);
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
  check_like_one_rank({.tensor = 2, .recompute = Recompute::block, .dims = kGated, .change = gemma3});
  check_like_one_rank({.tensor = 2,
                       .recompute = Recompute::attention,
                       .dims = dims_of({{"*.gate_up.*", 0}, {"*.down.weight", 1}}, {{"*.?_norm.weight", 0}}),
                       .change = olmo2});
}

TEST_CASE("attention with sinks that is cut by heads trains as one rank's") {
  const Dims mlp{{"*.gate_up.*", 0}, {"*.down.weight", 1}}, sinks{{"*.attention.sinks", 0}};
  const Attention attention("a", {.width = 8, .heads = 2, .has_sinks = true});
  const Dims own = tensor_partition(
                       attention, [](const Module&) { return false; }, "tensor")
                       .dims;
  CHECK(std::find(own.begin(), own.end(), Dims::value_type{"*.sinks", 0}) != own.end());
  check_like_one_rank({.tensor = 2, .dims = dims_of(mlp, sinks), .change = gpt_oss});
  check_like_one_rank(
      {.data = 2, .tensor = 2, .recompute = Recompute::block, .dims = dims_of(mlp, sinks), .change = gpt_oss});
}

TEST_CASE("an embedding and a head that are cut by the vocabulary train as one rank's, without whole logits") {
  const Dims tied{{"token_embedding.weight", 0}}, two{{"token_embedding.weight", 0}, {"head.weight", 0}};
  const ShardOptions by_parameter{.layout = {.layout = Layout::per_parameter}};
  check_like_one_rank({.tensor = 2, .dims = kGpt2, .root = tied});  // all classes are the first rank's
  check_like_one_rank({.tensor = 4, .dims = kGpt2, .root = tied, .vocab = 100, .has_documents = true});
  check_like_one_rank(
      {.data = 2, .tensor = 2, .options = by_parameter, .dims = kGpt2, .root = two, .vocab = 100, .is_tied = false});
}

TEST_CASE("logits of a cut head are those of one rank, on each") {
  for (const bool is_tied : {true, false}) {
    Job job{.dims = kGated, .change = llama, .vocab = 100, .is_tied = is_tied};
    const auto alone = on_ranks(1, [&](World& world) { return Run(world, job).logits(); }).front();
    job.tensor = 2;
    job.root = {{"token_embedding.weight", 0}};
    if (!is_tied) job.root.emplace_back("head.weight", 0);
    for (const auto& found : on_ranks(2, [&](World& world) { return Run(world, job).logits(); })) {
      REQUIRE(found.size() == alone.size());
      for (std::size_t i = 0; i < alone.size(); ++i) CHECK(max_difference(found[i], alone[i]) < 1e-4);
    }
  }
}

TEST_CASE("0.3-11i: whatever is frozen, and by whatever norm, cut and whole parameters are clipped as one rank's") {
  const auto is_cut = [](const Parameter& parameter) { return parameter.name().find("qkv") != std::string::npos; };
  const auto is_whole = [is_cut](const Parameter& parameter) { return !is_cut(parameter); };
  const Dims root{{"token_embedding.weight", 0}};
  check_like_one_rank({.tensor = 2, .dims = kGpt2, .root = root, .freezes = is_cut});
  check_like_one_rank({.data = 2, .tensor = 2, .dims = kGpt2, .freezes = is_whole});
  check_like_one_rank({.tensor = 2, .dims = kGpt2, .root = root, .norm_power = 1});
  check_like_one_rank({.data = 2,
                       .tensor = 2,
                       .options = {.scheme = {.strategy = Strategy::hsdp, .group_size = 1}},
                       .dims = kGpt2,
                       .norm_power = std::numeric_limits<float>::infinity()});
}

TEST_CASE("0.3-11i: by every rule of division gradients are those without an axis that cuts") {
  using Rule = Division::Rule;
  for (const Division division : {Division{Rule::none}, Division{Rule::mean}, Division{Rule::split_root},
                                  Division{Rule::custom, 3}, Division{Rule::custom_last, 3}}) {
    Job job{.data = 2, .options = {.division = division}, .dims = kGpt2, .rate = 0.1f};
    const Found without = run(job).front();
    job.tensor = 2;
    for (const Found& found : run(job, &without)) {
      CAPTURE(static_cast<int>(division.rule));
      CHECK(found.end < 1e-5);
      for (std::size_t i = 0; i < without.seen.size(); ++i)
        CHECK(found.seen[i] == Approx(without.seen[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("2B-5: what ranks send along an axis that cuts is what the formula says, with and without recomputing") {
  for (const Recompute recompute : {Recompute::none, Recompute::block}) {
    Job job{.tensor = 2, .recompute = recompute, .dims = kGpt2, .root = {{"token_embedding.weight", 0}}};
    std::int64_t sent = 0;
    for (const std::int64_t of_rank : on_ranks(2, [&](World& world) {
           Run own(world, job);
           own.train(1);
           return own.executor().groups().along("tensor").traffic().sent_bytes();
         }))
      sent += of_rank;
    // Each micro-batch, in f32: both sums of a block in forward, of which recomputing makes the first anew; both
    // gradients of inputs; rows of the embedding; gradients of the head's input; three numbers of a token's loss. And
    // hashes of ids and of targets. Of what is summed, both ranks together send twice as much.
    constexpr std::int64_t kElems = kTime * kWidth, kLayers = 2;
    const std::int64_t sums = kLayers * (2 + 2 + (recompute == Recompute::block ? 1 : 0)) + 2;
    CAPTURE(recompute);
    CHECK(sent == kMicroBatches * ((sums * kElems + 3 * kTime) * 4 + 2 * 16) * 2);
  }
}

TEST_CASE("1.3-3: ranks that compute one loss and have different tokens are told so in one line") {
  for (const bool are_targets : {false, true}) {
    const std::vector<std::string> said = on_ranks(4, [&](World& world) {
      Run own(world, {.data = 2, .tensor = 2, .dims = kGpt2});
      return message_of([&] { own.evaluate_other_tokens(world.rank() % 2 == 1, are_targets); });
    });
    for (const std::string& line : said)
      CHECK_THAT(line,
                 Catch::Contains(fmt::format("ranks along axis tensor, which read the same samples, have different "
                                             "{}",
                                             are_targets ? "targets" : "ids")));
  }
}

TEST_CASE("a token and a target that no rank has a row of are usage errors, as they are of one rank") {
  const Job job{.tensor = 2, .dims = kGpt2, .root = {{"token_embedding.weight", 0}}};
  const auto said = [&](const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets) {
    return on_ranks(2, [&](World& world) {
      Run own(world, job);
      return message_of([&] { own.evaluate_numbers(ids, targets); });
    });
  };
  const std::vector<std::int32_t> good{1, 2, 3, 4, 5};
  for (const std::string& line : said({1, 2, 128, 4, 5}, good))
    CHECK_THAT(line, Catch::Contains("op embedding: id 2 is 128, expected [0, 128)"));
  for (const std::string& line : said(good, {1, 2, 3, 11, 5}))
    CHECK_THAT(line, Catch::Contains("op lm_head_loss: target 3 is 11, expected [0, 11)"));
  for (const std::string& line : said(good, {1, -1, 3, 4, 5}))
    CHECK_THAT(line, Catch::Contains("op lm_head_loss: target 1 is -1, expected [0, 11)"));
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
  CHECK_THAT(problem({.tensor = 2, .dims = kGated, .change = gpt_oss}), Catch::Contains("and its sinks are whole"));
  CHECK_THAT(problem({.tensor = 2, .dims = kGated, .change = olmo2}),
             Catch::Contains("\"blocks.0.attention.q_norm\" is whole, and the heads that it is of are cut"));
}

}  // namespace zs::test::cut_heads_test
