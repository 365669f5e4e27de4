#include <catch2/catch.hpp>

#include "bench/kernel_bench.h"
#include "runtime/device/device.h"

using namespace zs;
using namespace zs::bench;

TEST_CASE("every case runs, and moves each of its operands once or twice") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 2, .cpus = {}});
  for (const KernelCase& one : kernel_cases()) {
    INFO(one.text());
    Arrays arrays(*device);
    device->stream(StreamRole::compute).enqueue({one.text(), {}, {}, 2 * kScratchBytes}, one.make(arrays, 0));
    REQUIRE_NOTHROW(device->synchronize());
    CHECK(one.bytes >= 0.99 * static_cast<double>(arrays.own_bytes()));  // the last rows of a padded vocabulary are not read
    CHECK(one.bytes <= 2.0 * static_cast<double>(arrays.own_bytes() + arrays.shared_bytes()));
    CHECK((one.flops > 0) == (one.bound == Bound::products));
  }
}

TEST_CASE("no two cases have the same text") {
  std::vector<std::string> texts;
  for (const KernelCase& one : kernel_cases()) texts.push_back(one.text());
  std::sort(texts.begin(), texts.end());
  CHECK(std::adjacent_find(texts.begin(), texts.end()) == texts.end());
}

TEST_CASE("a filter selects by kernel, shape or dtype, and refuses to select nothing") {
  const auto count = [](KernelOptions options) { return selected_cases(options).size(); };
  CHECK(count({.filter = "gelu", .dtype = "bf16", .threads = {}}) * 2 == count({.filter = "gelu", .dtype = "", .threads = {}}));
  for (const KernelCase& one : selected_cases({.filter = "x 768", .dtype = "f32", .threads = {}})) {
    CHECK_THAT(one.shape, Catch::Contains("x 768"));
    CHECK(one.dtype == DType::f32);
  }
  CHECK_THROWS_WITH(count({.filter = "no such kernel", .dtype = "", .threads = {}}), Catch::Contains("no such kernel"));
}

TEST_CASE("the ids of one set are different, and different from the next set's") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Arrays arrays(*device);
  const Buffer first = arrays.ids(1024, kPaddedVocab, 0), second = arrays.ids(1024, kPaddedVocab, 1);
  device->synchronize();
  std::vector<std::int32_t> ids(first.as<std::int32_t>(), first.as<std::int32_t>() + first.elems);
  ids.insert(ids.end(), second.as<std::int32_t>(), second.as<std::int32_t>() + second.elems);
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
  CHECK(ids.front() >= 0);
  CHECK(ids.back() < kPaddedVocab);
}

TEST_CASE("a rate is compared with the ceiling of its kind, dtype and number of threads") {
  KernelReport report{.isa = "",
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
