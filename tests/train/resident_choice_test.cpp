// How many units keep on the device what the host keeps of the others, against every number.
#include "model/train/plan/resident_choice.h"

#include <algorithm>

#include "tests/train/config_text.h"

namespace resident_choice_test {

using namespace zs;
using namespace zs::test;

namespace {

/// What could change besides is as small as it can be.
MemoryDemand demand(std::int64_t units) {
  const Overrides sizes = {
      "model.layers=4",       "model.width=64",        "model.heads=2",        "model.context=16",
      "train.sequence=16",    "train.micro_batch=1",   "shard.limit=1",        "train.global_batch=4",
      "run.sample_tokens=0",  "train.recompute=block", "shard.zero_copy=off",  "train.loss_chunk=32",
      "precision.param=bf16", "offload.weights=host",  "offload.moments=host", "offload.gradients=host"};
  MemoryDemand demand{parse_config(kSmall, "small.toml", sizes), {.ranks = 2}, 2};
  demand.config.offload.resident_units = {.value = units};
  return demand;
}

constexpr std::int64_t kUnits = 5;

RankBytes bytes_of(std::int64_t units) {
  const MemoryDemand run = demand(units);
  return make_plan(run.config, run.plan).rank_bytes();
}

std::vector<MemoryBudget> budget(std::int64_t bytes) {
  return {{bytes, true, "a limit", MemoryBudget::Of::device, true}};
}

}  // namespace

TEST_CASE("as many units stay resident as fit, and no more than asked for") {
  std::vector<std::int64_t> device;
  for (std::int64_t units = 0; units <= kUnits; ++units) device.push_back(bytes_of(units).device);
  REQUIRE(std::is_sorted(device.begin(), device.end()));
  REQUIRE(device.front() < device.back());
  for (const std::int64_t room : device) {
    const auto most = std::upper_bound(device.begin(), device.end(), room) - device.begin() - 1;
    CAPTURE(room, most);
    CHECK(choose_resident_units(demand(0), budget(room)) == most);
    CHECK(choose_resident_units(demand(0), budget(room), 2) == std::min<std::int64_t>(most, 2));
  }
  CHECK(choose_resident_units(demand(3), budget(1)) == 0);
}

TEST_CASE("a run that lacks the device's memory is told of fewer resident units") {
  const auto fewer = smallest_change(demand(kUnits), budget(bytes_of(3).device));
  REQUIRE(fewer);
  CHECK(fewer->text == "set offload.resident_units=3");
  CHECK(least_memory(demand(kUnits)).demand.config.offload.resident_units.value == 0);
}

}  // namespace resident_choice_test
