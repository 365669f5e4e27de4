#include <catch2/catch.hpp>
#include <map>

#include "model/train/plan/plan.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::schemes_test {
namespace {

Config config_of(const SchemeCase& one) {
  Config config = tiny_config();
  config.train.global_batch = one.ranks * one.micro_batches;
  choose_scheme(config, one.scheme);
  config.shard.prefetch = one.prefetch;
  return config;
}

constexpr int kSteps = 2;

/// The same samples on one rank, deterministic, by batch and dtype.
const TinyResult& reference(std::int64_t global_batch, const std::string& param) {
  static std::map<std::pair<std::int64_t, std::string>, TinyResult> results;
  const auto key = std::pair(global_batch, param);
  if (results.count(key) == 0) {
    Config config = tiny_config();
    config.train.global_batch = global_batch;
    config.precision.param = param;
    results[key] = train_tiny(config, {.steps = kSteps});
  }
  return results[key];
}

std::string text_of(const Config& config, const SchemeCase& one) {
  return fmt::format("{} group {} reshard {} each {} ranks {} prefetch {} micro-batches {} {}", config.shard.strategy,
                     config.shard.group_size, config.shard.reshard_after_forward.str(),
                     config.shard.reduce_every_micro_batch, one.ranks, one.prefetch, one.micro_batches,
                     config.precision.param);
}

/// What holds for every run: counted bytes are the plan's, and no access to memory is left unordered.
void check_run(const Config& config, const SchemeCase& one, const TinyResult& run) {
  const std::int64_t planned = make_plan(config, 0, one.ranks).step_peak_bytes;
  for (const std::int64_t peak : run.peak_bytes) CHECK(peak == planned);
  const auto violations = verify_order(run.trace);
  CHECK((violations.empty() ? "" : violations.front().message) == "");
}

template <class Body>
void for_each_case(const Body& body) {
  int number = 0;
  for (const std::string& name : scheme_names()) {
    const bool has_groups = scheme_of(name, 4).group_size > 0 || scheme_of(name, 4).reshard_after_forward.group() > 0;
    for (const SchemeCase& one : scheme_cases(name, has_groups ? std::vector{2, 4, 8} : std::vector{2, 3, 4, 8})) {
      ++number;
      if (is_thinned_out()) continue;
      for (const std::string& layout : layout_names()) {
        if (layout == "zero-copy" && one.scheme.strategy == Strategy::ddp) continue;  // as flat
        Config config = config_of(one);
        choose_layout(config, layout);
        config.precision.param = number % 3 == 0 ? "bf16" : "f32";
        CAPTURE(text_of(config, one), layout);
        body(config, one);
      }
    }
  }
}

}  // namespace

TEST_CASE("I1, I4: deterministic training is bit-identical in every scheme, in the memory of its plan", "[schemes]") {
  for_each_case([](const Config& config, const SchemeCase& one) {
    const TinyResult run = train_tiny(config, {.ranks = one.ranks, .steps = kSteps});
    const TinyResult& expected = reference(config.train.global_batch, config.precision.param);
    CHECK(run.losses == expected.losses);
    CHECK(run.grad_norms == expected.grad_norms);
    CHECK(run.weights == expected.weights);
    check_run(config, one, run);
  });
}

TEST_CASE("I4: sums in a scheme's own order are the same up to rounding, in the memory of its plan", "[schemes]") {
  for_each_case([](Config config, const SchemeCase& one) {
    config.train.deterministic = false;
    const TinyResult run = train_tiny(config, {.ranks = one.ranks, .steps = kSteps});
    const TinyResult& expected = reference(config.train.global_batch, config.precision.param);
    // f32 sums of up to 32 terms in another order, of bf16 gradients too: these are seldom rounded at all.
    constexpr double bound = 2e-5;
    for (std::size_t i = 0; i < run.grad_norms.size(); ++i)
      CHECK(run.grad_norms[i] == Approx(expected.grad_norms[i]).epsilon(bound));
    CHECK(run.losses.back() == Approx(expected.losses.back()).epsilon(bound));
    check_run(config, one, run);
  });
}

TEST_CASE("I1: sums in a scheme's own order are the same bits in every layout", "[schemes]") {
  std::string flat;  // the weights of the case before: the flat layout comes first
  for_each_case([&](Config config, const SchemeCase& one) {
    config.train.deterministic = false;
    config.train.clip = 0;  // the norm's order is the shards'
    if (config.precision.param == "bf16") config.precision.reduce = "bf16";
    const TinyResult run = train_tiny(config, {.ranks = one.ranks, .steps = kSteps});
    if (config.shard.layout == "flat" && config.shard.zero_copy == "off") flat = run.weights;
    CHECK(run.weights == flat);
  });
}

TEST_CASE("I1: delays, poisoned memory, validation and ends that are not kept do not change a bit in any scheme",
          "[schemes]") {
  const std::string layout = GENERATE(from_range(layout_names()));
  for (const std::string name : {"zero1", "hsdp", "nested", "zero3 k"}) {
    SchemeCase one{scheme_of(name, 4), 4, 1, 2};
    Config config = config_of(one);
    choose_layout(config, layout);
    config.shard.keep_root_unsharded = false;
    config.run.validate_every = 1;
    config.run.validate_batches = 1;
    CAPTURE(text_of(config, one), layout);
    const TinyResult run = train_tiny(config, {.ranks = 4, .steps = kSteps, .perturb_seed = 3});
    CHECK(run.weights == reference(config.train.global_batch, "f32").weights);
  }
}

}  // namespace zs::test::schemes_test
