#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "bench/kernels/gpu_kernel_bench.h"
#include "bench/kernels/kernel_bench.h"
#include "runtime/device/device.h"
#include "tests/bench/emulated_gpu.h"

namespace kernel_cases_test {

using namespace zs;
using namespace zs::bench;
using namespace zs::test;

namespace {

/// Of a GPU that the host plays: large enough that each kernel has some blocks and a tail.
const GpuBenchSizes kTiny{.cases = {.batch = 2,
                                    .time = 16,
                                    .width = 24,
                                    .heads = 2,
                                    .vocab = 383,
                                    .padded_vocab = 384,
                                    .unit_elems = 2304,
                                    .swiglu_width = 40,
                                    .odd_elems = 1003,
                                    .odd_rows = 13,
                                    .odd_width = 19,
                                    .attention = {{1, 16, 2, 64}, {1, 16, 2, 64, 1}, {1, 7, 1, 40}},
                                    .is_gpu = true},
                          .ceilings = {.sample_ms = 0, .copy_bytes = 1 << 16, .product_size = 32}};
constexpr std::int64_t kEmulatedL2Bytes = 1 << 14;

void check_cases(Device& device, const CaseSizes& sizes, std::int64_t scratch_bytes) {
  for (const KernelCase& one : kernel_cases(sizes)) {
    INFO(one.text());
    Arrays arrays(device);
    device.stream(StreamRole::compute).enqueue({one.text(), {}, {}, scratch_bytes}, one.make(arrays, 0));
    REQUIRE_NOTHROW(device.synchronize());
    CHECK(one.bytes >=
          0.99 * static_cast<double>(arrays.own_bytes()));  // the last rows of a padded vocabulary are not read
    CHECK(one.bytes <= 2.0 * static_cast<double>(arrays.own_bytes() + arrays.shared_bytes()));
    CHECK((one.flops > 0) == (one.bound == Bound::products));
  }
}

}  // namespace

TEST_CASE("every case runs, and moves each of its operands once or twice") {
  check_cases(*Device::create(DeviceKind::cpu, {.threads = 2, .cpus = {}}), {}, 2 * kScratchBytes);
}

TEST_CASE("every case runs on a GPU, and moves each of its operands once or twice") {
  Emulated gpu;
  check_cases(*gpu.make(), kTiny.cases, kGpuScratchBytes);
}

TEST_CASE("a GPU's arrays are filled as the CPU's are") {
  Emulated gpu;
  const auto host = Device::create(DeviceKind::cpu, {}), device = gpu.make();
  const auto filled = [](Device& on, DType dtype) {
    Arrays arrays(on);
    const std::array all = {arrays.random(200'003, dtype), arrays.ids(1000, kTiny.cases.vocab, 3),
                            arrays.floats({1, 2, 3}), arrays.zeros(1001, dtype)};
    std::vector<std::vector<std::byte>> seen;
    for (const Buffer& one : all) seen.emplace_back(static_cast<std::size_t>(one.bytes()));
    on.stream(StreamRole::compute).enqueue({"read", {all.begin(), all.end()}, {}}, [&](ExecContext& exec) {
      for (std::size_t i = 0; i < all.size(); ++i) kernels_of(exec).download(exec, seen[i].data(), all[i]);
    });
    on.synchronize();
    return seen;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto seen = filled(*device, dtype);
    CHECK(seen == filled(*host, dtype));
    const std::int64_t period = 65'537 * size_of(dtype);
    CHECK(std::equal(seen[0].begin() + period, seen[0].end(), seen[0].begin()));
    CHECK(std::set(seen[0].begin(), seen[0].end()).size() > 100);
  }
}

TEST_CASE("a GPU's kernels are compared with its copies and its products, and say which GPU it was") {
  Emulated gpu;
  const KernelReport report =
      GpuKernelBench({.device = "cuda", .filter = "", .dtype = "", .threads = {}, .min_time_s = 0}, gpu.maker(), kTiny)
          .run();
  CHECK(report.gpu == "Emulated");
  CHECK(report.cache_bytes == kEmulatedL2Bytes);
  REQUIRE(report.rows.size() == kernel_cases(kTiny.cases).size());
  const KernelReport::Ceilings& ceilings = report.ceilings.at(1);
  CHECK(ceilings.copy_gb_per_s >= ceilings.memcpy_gb_per_s);
  CHECK(ceilings.memcpy_gb_per_s > 0);
  CHECK(ceilings.product_gflops.size() == 2);
  for (const KernelReport::Row& row : report.rows) {
    INFO(row.kernel << " " << row.shape);
    CHECK(row.calls >= static_cast<std::int64_t>(kFewestSamples));
    CHECK(row.ms_min > 0);
    CHECK(row.ms_min <= row.ms_median);
    CHECK((report.percent(row) > 0) == (row.bound != Bound::latency));
  }
  CHECK_THAT(to_text(report), Catch::Contains("Emulated (sm_99)") && Catch::Contains("the driver's"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("device":"cuda","gpu":"Emulated")"));
}

TEST_CASE("calls on a GPU go round more operands than its L2 holds") {
  Emulated gpu;
  const auto device = gpu.make();
  for (const KernelCase& one : kernel_cases(kTiny.cases)) {
    INFO(one.text());
    const ColdCalls cold(*device, one, kEmulatedL2Bytes);
    device->synchronize();  // before what is filled goes
    const auto sets = static_cast<double>(cold.calls.size());
    if (one.bound == Bound::latency)
      CHECK(sets == 1);
    else
      CHECK((sets + 1) * one.bytes >= 4.0 * kEmulatedL2Bytes);
  }
}

TEST_CASE("a GPU's calls are over when their time is taken") {
  Emulated gpu;
  const auto device = gpu.make();
  int begun = 0, ended = 0;
  std::vector<Work> calls;
  for (int i = 0; i < 3; ++i) {
    calls.emplace_back([&](ExecContext& exec) {
      ++begun;
      gpu.driver.launch(exec.native_stream(), [&] { ++ended; });
    });
  }
  GpuCalls timed(*device, "counted", calls);
  CHECK(timed.run(7) > 0);
  CHECK(begun == 7);
  CHECK(ended == 7);
  CHECK(timed.count_in(0) == 1);
  CHECK(ended == 13);  // two rounds of three
}

TEST_CASE("no two cases have the same text") {
  std::vector<std::string> texts;
  for (const KernelCase& one : kernel_cases()) texts.push_back(one.text());
  std::sort(texts.begin(), texts.end());
  CHECK(std::adjacent_find(texts.begin(), texts.end()) == texts.end());
}

TEST_CASE("a filter selects by kernel, shape or dtype, and refuses to select nothing") {
  const auto count = [](KernelOptions options) { return selected_cases(options).size(); };
  CHECK(count({.filter = "gelu", .dtype = "bf16", .threads = {}}) * 2 ==
        count({.filter = "gelu", .dtype = "", .threads = {}}));
  CHECK(count({.device = "cuda", .filter = "matmul_gelu", .dtype = "bf16", .threads = {}}) == 2);
  CHECK_THROWS_WITH(count({.filter = "matmul_gelu", .dtype = "", .threads = {}}), Catch::Contains("matmul_gelu"));
  for (const KernelCase& one : selected_cases({.filter = "x 768", .dtype = "f32", .threads = {}})) {
    CHECK_THAT(one.shape, Catch::Contains("x 768"));
    CHECK(one.dtype == DType::f32);
  }
  CHECK_THROWS_WITH(count({.filter = "no such kernel", .dtype = "", .threads = {}}), Catch::Contains("no such kernel"));
}

TEST_CASE("the ids of one set are different, and different from the next set's") {
  const auto device = Device::create(DeviceKind::cpu, {});
  const std::int64_t padded_vocab = CaseSizes{}.padded_vocab;
  Arrays arrays(*device);
  const Buffer first = arrays.ids(1024, padded_vocab, 0), second = arrays.ids(1024, padded_vocab, 1);
  device->synchronize();
  std::vector<std::int32_t> ids(first.as<std::int32_t>(), first.as<std::int32_t>() + first.elems);
  ids.insert(ids.end(), second.as<std::int32_t>(), second.as<std::int32_t>() + second.elems);
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
  CHECK(ids.front() >= 0);
  CHECK(ids.back() < padded_vocab);
}

TEST_CASE("a rate is compared with the ceiling of its kind, dtype and number of threads") {
  KernelReport report{
      .isa = "",
      .ceilings = {{1, {.copy_gb_per_s = 10, .product_gflops = {{DType::f32, 100}, {DType::bf16, 200}}}},
                   {2, {.copy_gb_per_s = 20, .product_gflops = {}}}}};
  KernelReport::Row row{"k", "s", DType::bf16, Bound::memory, 2, 5e6, 50e6, 1, 1.0, 2.0};
  CHECK(row.gb_per_s() == Approx(5));
  CHECK(report.percent(row) == Approx(25));
  row.threads = 1;
  CHECK(report.percent(row) == Approx(50));
  row.bound = Bound::products;
  CHECK(row.gflops() == Approx(50));
  CHECK(report.percent(row) == Approx(25));
  row.bound = Bound::latency;
  CHECK(report.percent(row) == 0);
}

TEST_CASE("the ceilings come from the machine and are kept when later rounds are slower") {
  CopyCeiling copies({}, 1 << 20);
  copies.measure(2);
  const double best = copies.gb_per_s();
  CHECK(copies.memcpy_gb_per_s() > 0);
  CHECK(best >= copies.memcpy_gb_per_s());
  copies.measure(1);
  CHECK(copies.gb_per_s() >= best);
}

}  // namespace kernel_cases_test
