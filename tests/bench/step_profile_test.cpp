#include "bench/step/step_profile.h"

#include <catch2/catch.hpp>

#include "bench/step/step_report.h"
#include "model/train/plan/ceiling.h"

namespace step_profile_test {

using namespace zs;
using namespace zs::bench;

namespace {

OpTime op(std::string name, std::int64_t start_ms, std::int64_t end_ms) {
  return {std::move(name), false, start_ms * 1'000'000, end_ms * 1'000'000};
}

}  // namespace

TEST_CASE("two steps of a stream are summed by op, without the unit, as means of one step, the longest first") {
  Profile profile;
  for (const std::int64_t start : {0, 100}) {
    profile.add(StreamRole::unshard, op("shard_to_full:blocks.0", start, start + 1));
    profile.add(StreamRole::unshard, op("all_gather(blocks.0)", start + 1, start + 11));
    profile.add(StreamRole::unshard, op("all_gather(blocks.1)", start + 20, start + 40));
  }
  const StepProfile steps = summarise(profile, 2, 200);
  CHECK(steps.step_ms == Approx(100));
  REQUIRE(steps.rows.size() == 2);
  CHECK(steps.rows[0].op == "all_gather");
  CHECK(steps.rows[0].calls == Approx(2));
  CHECK(steps.rows[0].ms == Approx(30));
  CHECK(steps.rows[1].op == "shard_to_full");
  CHECK(steps.rows[1].ms == Approx(1));
  CHECK(steps.busy_ms == 0);
}

TEST_CASE("the compute stream's step is ops, waits and idle time") {
  Profile profile;
  profile.add(StreamRole::compute, op("linear", 1, 7));
  profile.add(StreamRole::compute, {"unshard", true, 7'000'000, 9'000'000});
  profile.add(StreamRole::compute, op("linear", 9, 10));
  profile.add(StreamRole::reduce, op("reduce_scatter(blocks.0)", 0, 10));
  const StepProfile step = summarise(profile, 1, 12);
  CHECK(step.busy_ms == Approx(7));
  CHECK(step.waiting_ms == Approx(2));
  CHECK(step.idle_ms() == Approx(3));
  REQUIRE(step.rows.size() == 3);
  CHECK(step.rows[1].op == "wait for unshard");
  CHECK(step.rows[1].is_wait);
  CHECK(step.rows[2].stream == StreamRole::reduce);
}

TEST_CASE("a token of GPT-2 124M at 1024 tokens takes 0.80 GFLOP") {
  constexpr std::int64_t kParameters = 124'475'904;  // with the vocabulary padded to 50304 rows
  CHECK(flops_per_token(kParameters, 12, 768, 1024) == Approx(0.8035e9).epsilon(1e-3));
}

TEST_CASE("rates follow from the median step of all ranks") {
  StepReport report{.ranks = 2,
                    .micro_batch = 4,
                    .micro_batches = 3,
                    .sequence = 256,
                    .step_ms = 500,
                    .flops_per_token = 1e6,
                    .product_ceiling_gflops = 24.576};
  CHECK(report.tokens_per_s() == Approx(2 * 3 * 4 * 256 / 0.5));
  CHECK(report.pct_of_product_ceiling() == Approx(50));
}

}  // namespace step_profile_test
