// bench_collectives between GPUs that the host plays: every operation is right, and one that is wrong is counted.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>
#include <tuple>

#include "bench/collectives/collective_bench.h"
#include "tests/bench/emulated_gpu.h"

namespace gpu_collectives_test {

using namespace zs;
using namespace zs::bench;
using namespace zs::test;
using Catch::Contains;

namespace {

Config cuda_config() {
  Config config;
  config.device = "cuda";
  return config;
}

CollectiveOptions small(std::int64_t max_bytes) {
  return {.ops = {}, .dtypes = {}, .min_bytes = 1000, .max_bytes = max_bytes, .min_time_s = 0};
}

}  // namespace

TEST_CASE("between GPUs every collective is right, over NCCL and staged, beside the copies of all GPUs together") {
  const auto [transport, name] = GENERATE(std::pair(Transport::nccl, "nccl"), std::pair(Transport::staged, "staged"));
  constexpr int kRanks = 3;
  Emulated gpus(kRanks);
  std::vector<CollectiveReport> reports(kRanks);
  gpus.run(kRanks, transport, [&](World& world, const Machine& machine) {
    reports[static_cast<std::size_t>(world.rank())] = CollectiveBench(world, small(4096), cuda_config(), machine).run();
  });
  const bool is_nccl = transport == Transport::nccl;
  CHECK((gpus.nccl.registered().collectives > 0) == is_nccl);
  CHECK(gpus.nccl.registered().displaced == 0);
  CHECK(gpus.nccl.registry().mistakes().empty());
  CHECK(gpus.driver.calls("cuMemHostAlloc") ==
        2 * kRanks);  // uploads of two devices, or of one and what is staged: nothing in between
  const CollectiveReport& report = reports[0];
  CHECK(report.gpu == "Emulated");
  CHECK(report.ranks_a_gpu == 1);
  CHECK(report.cache_bytes == 1 << 14);  // the emulated GPU's
  CHECK(report.copy_gb_per_s > 0);
  CHECK(reports[1].copy_gb_per_s == report.copy_gb_per_s);
  CHECK(report.wrong() == 0);
  std::set<std::tuple<Collective, DType, std::int64_t>> seen;
  for (const auto& row : report.rows) {
    INFO(name_of(row.op) << " " << name_of(row.dtype) << " " << row.bytes);
    CHECK(row.transport == name);
    CHECK(row.time_us >= row.time_us_min);
    CHECK(row.time_us_min > 0);
    CHECK(report.percent(row) > 0);
    const std::int64_t set_bytes = row.bytes * (row.op == Collective::all_to_all ? 2 : 1);
    CHECK(row.sets * set_bytes >= 2 * report.cache_bytes);
    CHECK((row.sets - 1) * set_bytes < 2 * report.cache_bytes);
    seen.insert({row.op, row.dtype, row.bytes});
  }
  CHECK(seen.size() == 5 * 2 * 2);
  CHECK(seen.size() == report.rows.size());
  CHECK_THAT(to_text(report), Contains("3 ranks, up to 1 on one Emulated"));
  CHECK_THAT(to_json(report), Contains(R"("device":"cuda","gpu":"Emulated","ranks":3,"ranks_a_gpu":1)"));
}

TEST_CASE("elements that no GPU has sent are counted as wrong") {
  constexpr int kRanks = 2;
  Emulated gpus(kRanks);
  std::vector<CollectiveReport> reports(kRanks);
  gpus.run(kRanks, Transport::null, [&](World& world, const Machine& machine) {
    const auto silent = make_null_world(world);
    reports[static_cast<std::size_t>(world.rank())] =
        CollectiveBench(*silent, small(1000), cuda_config(), machine).run();
  });
  CHECK(reports[1].rows.size() == 10);
  for (const auto& row : reports[1].rows) {
    INFO(name_of(row.op));
    CHECK(row.wrong > 0);
  }
}

}  // namespace gpu_collectives_test
