// What a plan of units says of itself: one name, two configurations, lists against the order, and plans for any number
// of ranks.
#include "model/train/plan/explain.h"

#include <fmt/format.h>

#include <numeric>

#include "model/train/config/config_plan.h"
#include "model/train/session/session.h"
#include "tests/message_of.h"
#include "tests/train/config_text.h"

namespace plan_explain_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

namespace {

const Overrides kSizes = {"model.layers=2", "model.width=32",       "model.heads=2",      "train.sequence=16",
                          "device=cpu",     "train.global_batch=8", "run.sample_tokens=0"};

Config config_of(Overrides overrides) {
  overrides.insert(overrides.begin(), kSizes.begin(), kSizes.end());
  return parse_config(kSmall, "small.toml", overrides);
}

const char* const kAttention = "plan.apply=['blocks.{*}.attention', 'blocks.{*}.mlp']";

std::vector<std::string> warnings_of(const Overrides& overrides) {
  return make_plan(config_of(overrides), 0, 2).warnings;
}

}  // namespace

TEST_CASE("a name is explained: its unit and why, dtypes, bytes, and when it is gathered and freed") {
  const Config config = config_of({kAttention, "plan.hooks=['blocks.{*}']", "plan.forward=1",
                                   "shard.keep_root_unsharded=false", "plan.reshard=['blocks.0.*=false']",
                                   "precision.param=bf16", "plan.param=['*.mlp=f32']", "shard.zero_copy=off"});
  const TrainPlan plan = make_plan(config, 0, 2);
  const std::string unit = explain(plan, config, "blocks.0.attention");
  for (const char* line :
       {"blocks.0.attention: a unit\n", "plan.apply \"blocks.{*}.attention\"",
        "resharding by plan.reshard \"blocks.0.*\"", "parameters bf16, reduction f32, output bf16", "4 parameters",
        "blocks.0.attention gathers ahead in forward: blocks.1.attention, blocks.1.mlp",
        "gather            forward   behind", "reduce  "})
    CHECK_THAT(unit, Contains(line));
  const std::string parameter = explain(plan, config, "blocks.1.mlp.up.weight");
  for (const char* line : {"blocks.1.mlp.up.weight: a part of the unit blocks.1.mlp\n", "shape       (128, 32)",
                           "opened by the forward of blocks.1 (plan.hooks)", "parameters by plan.param \"*.mlp\"",
                           "parameters f32, reduction f32, output bf16", "free_full         forward"})
    CHECK_THAT(parameter, Contains(line));
  CHECK_THAT(explain(plan, config, "norm"), Contains("norm: a part of the unit root"));
  CHECK_THAT(message_of([&] { explain(plan, config, "blocks.0.atention"); }),
             Contains("the model has no \"blocks.0.atention\"") && Contains("nearest names are blocks.{*}.attention"));
  const Config encoded = config_of({kAttention, "plan.gather=['blocks.0.*=fp8']"});
  const TrainPlan of_encoded = make_plan(encoded, 0, 2);
  CHECK_THAT(explain(of_encoded, encoded, "blocks.0.attention"),
             Contains("gathered as fp8\n") && Contains("gather format by plan.gather \"blocks.0.*\""));
  CHECK_THAT(explain(of_encoded, encoded, "blocks.1.attention"), !Contains("gathered as"));
  const Config plain = config_of({});
  CHECK_THAT(explain(make_plan(plain, 0, 2), plain, "blocks.0.norm1.bias"),
             Contains("a part of the unit blocks.0") && Contains("shard.units \"block\""));
}

TEST_CASE("micro-batches that are empty since the ranks do not divide the batch are a warning") {
  const Config config = config_of({"train.global_batch=16", "train.micro_batch=4"});
  CHECK(make_plan(config, 0, 2).warnings.empty());
  CHECK_THAT(fmt::format("{}", fmt::join(make_plan(config, 0, 3).warnings, "\n")),
             Contains("not a multiple of 3 ranks x train.micro_batch 4: 2 of a step's 6 micro-batches are empty"));
}

TEST_CASE("a plan has the memory of what validations do beside their loss, and of no loss without data") {
  const Config config = config_of({"run.validate_every=2"});
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const TrainPlan plain = make_plan(config, {});
  const auto evaluate = [](Session& session) {
    Tensor::empty(session.runtime().context(), {kBytes / size_of(DType::f32)}, DType::f32);
  };
  const TrainPlan more = make_plan(config, {.validation_windows = 0, .evaluate = evaluate});
  CHECK(more.reserved_bytes > kBytes);
  CHECK(plain.reserved_bytes < kBytes);
  CHECK(more.step_peak_bytes == plain.step_peak_bytes);
}

TEST_CASE("two configurations are compared in keys, units, bytes, gathers, schedule and bits") {
  const auto difference = [](const Overrides& a, const Overrides& b) {
    const Config first = config_of(a), second = config_of(b);
    const TrainPlan of_first = make_plan(first, 0, 2), of_second = make_plan(second, 0, 2);
    return describe_difference({of_first, first, "a.toml"}, {of_second, second, "b.toml"});
  };
  const std::string same = difference({}, {});
  CHECK_THAT(same, Contains("keys\n  none") && Contains("the schedules are the same") &&
                       Contains("the bits of the weights stay the same"));
  CHECK_THAT(difference({}, {"offload.moments=host", "offload.resident_units=1"}),
             Contains("the bits of the weights stay the same"));
  const std::string units = difference({"train.deterministic=true"}, {"train.deterministic=true", kAttention});
  for (const std::string& line :
       {fmt::format("{:<32}[]  ->  [\"blocks.{{*}}.attention\", \"blocks.{{*}}.mlp\"]", "plan.apply"),
        fmt::format("{:<34}{:>16}{:>16}{:>+16}\n", "units", 3, 5, 2),
        std::string("units of A alone: blocks.0, blocks.1\n"),
        std::string("units of B alone: blocks.0.attention, blocks.0.mlp, "),
        std::string("the schedules part at action "), std::string("stay the same (train.deterministic)")})
    CHECK_THAT(units, Contains(line));
  CHECK_THAT(difference({}, {kAttention}), Contains("the same but for rounding"));
  CHECK_THAT(difference({"train.deterministic=true"},
                        {"train.deterministic=true", kAttention, "precision.param=bf16", "plan.param=['*.mlp=f32']"}),
             Contains("the bits of the weights differ: plan.param, precision.param"));
}

TEST_CASE("3.3-1: lists that do not go with the order in which units run are said, with both places") {
  const char* const kLists = "plan.forward=1";
  const char* const kNested = "plan.apply=['blocks.{*}', 'blocks.{*}.attention', 'blocks.{*}.mlp']";
  CHECK(warnings_of({kNested, kLists}).empty());
  CHECK(warnings_of({kNested, "plan.hooks=['blocks.{*}']", kLists, "plan.backward=1"}).empty());
  // A block's own parameters are behind its MLP's in backward.
  const auto backward = warnings_of({kNested, "plan.backward=1"});
  REQUIRE_FALSE(backward.empty());
  CHECK_THAT(backward[0], Contains("gathers blocks.0.mlp ahead of blocks.0 in backward: blocks.0.mlp runs first"));
  const auto child_first = warnings_of({"plan.apply=['blocks.{*}.attention', 'blocks.{*}']", kLists});
  REQUIRE(child_first.size() == 1);
  CHECK_THAT(child_first[0],
             Contains("gathers blocks.0 ahead of blocks.1.attention in forward: blocks.0 runs first (2 of ") &&
                 Contains("listed for nothing"));
  const auto swapped =
      warnings_of({"plan.apply=['token_embedding', 'blocks.{*}.mlp', 'blocks.{*}.attention']", "plan.forward=2"});
  REQUIRE_FALSE(swapped.empty());
  // 3-38: the later one of two patterns has the module, and one warning says what that comes to, whatever the phases.
  const auto overlapping = warnings_of({"plan.apply=['blocks.{*}', 'blocks.0']", kLists, "plan.backward=1"});
  REQUIRE(overlapping.size() == 1);
  CHECK_THAT(overlapping[0], Contains("gathers blocks.0 ahead of blocks.1 in forward: blocks.0 runs first"));
  CHECK_THAT(message_of([] { make_plan(config_of({"plan.apply=['blocks', 'blocks.{*}']"}), 0, 1); }),
             Contains("whose forward never runs"));
}

TEST_CASE("the shipped configurations are planned for any number of ranks in one process") {
  const auto [name, ranks] = GENERATE(table<const char*, int>({{"kjv-tiny", 1},
                                                               {"kjv-tiny", 3},
                                                               {"kjv-tiny", 8},
                                                               {"kjv-tiny", 512},
                                                               {"kjv-llama-tiny", 1},
                                                               {"kjv-llama-tiny", 3},
                                                               {"kjv-llama-tiny", 8},
                                                               {"kjv-llama-tiny", 512},
                                                               {"gpt2-124M-tokens", 1},
                                                               {"gpt2-124M-tokens", 3},
                                                               {"gpt2-124M-tokens", 8},
                                                               {"gpt2-124M-tokens", 512}}));
  CAPTURE(name, ranks);
  const std::string path = fmt::format("{}/model/configs/{}.toml", ZSHARD_SOURCE_ROOT, name);
  const std::int64_t micro_batch = load_config(path).train.micro_batch;
  const Config config = load_config(path, {fmt::format("train.global_batch={}", 2 * micro_batch * ranks)});
  check_ranks(config, ranks);
  const TrainPlan one = make_plan(config, 0, 1), many = make_plan(config, ranks - 1, ranks);
  const auto elements = [](const TrainPlan& plan) {
    return std::accumulate(plan.units.begin(), plan.units.end(), std::int64_t{0},
                           [](std::int64_t sum, const auto& unit) { return sum + unit.layout->numel(); });
  };
  CHECK(elements(one) == elements(many));
  std::int64_t held = 0;
  for (const auto& unit : many.units) held += unit.layout->held_elems();
  CHECK(held * ranks >= elements(many));
  CHECK((held - std::ssize(many.units) * 1024) * ranks <= elements(many));  // padding
  CHECK(many.reserved_bytes > 0);
}

}  // namespace plan_explain_test
