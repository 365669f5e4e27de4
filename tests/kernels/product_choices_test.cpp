#include <catch2/catch.hpp>

#include "kernels/kernels.h"
#include "runtime/device/cuda_device.h"
#include "runtime/device/product_choices.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"

namespace product_choices_test {

using namespace zs;
using namespace zs::test;

namespace {

/// Each candidate's product runs once before it is timed, and three times then.
constexpr int kRunsTimed = 4;

DeviceOptions timed() {
  DeviceOptions options = patient();
  options.times_products = true;
  return options;
}

/// A CUDA device on an emulated GPU, whose products have as many candidates as times in milliseconds.
struct Gpu {
  explicit Gpu(std::vector<double> ms, const DeviceOptions& options = timed())
      : driver({.seed = 5, .kernels = emulated_kernels()}),
        device(options, {driver.table(), cublas.table()}),
        memory(device.pool().acquire(kElems * 2, stream(), "activation")),
        choices(device.context().product_choices()) {
    cublas.know_candidates(static_cast<int>(ms.size()),
                           [=](int, int candidate) { return ms[static_cast<std::size_t>(candidate)]; });
    for (std::int64_t i = 0; i < kElems; ++i) memory.buffer(DType::bf16, kElems).as<BFloat16>()[i] = BFloat16(1.0f);
  }

  Stream& stream() { return device.stream(StreamRole::compute); }
  Buffer part(std::int64_t which, std::int64_t elems) {
    return memory.buffer(DType::bf16, kElems).slice(which * 512, elems);
  }
  void enqueue(std::int64_t n, float beta) {
    const MatmulDims dims{.m = 4, .n = n, .k = 8, .beta = beta};
    const Buffer a = part(0, 32), b = part(1, 8 * n), c = part(2, 4 * n);
    stream().enqueue({"linear", {a, b}, {c}, cuda_kernels().scratch.matmul(dims)},
                     [=](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, {}, dims); });
  }
  /// c := beta c + a b, of ones, (4, 8) and (8, n): the last element of c.
  float multiply(std::int64_t n = 8, float beta = 0) {
    enqueue(n, beta);
    device.synchronize();
    return static_cast<float>(part(2, 4 * n).as<BFloat16>()[4 * n - 1]);
  }
  void settle() { choices->settle(choices->measured()); }
  std::vector<int> products() {
    std::vector<int> counts;
    for (int candidate = 0; candidate < 4; ++candidate) counts.push_back(cublas.products_by(candidate));
    return counts;
  }

  static constexpr std::int64_t kElems = 4096;
  EmulatedDriver driver;
  EmulatedCublas cublas{driver};
  CudaDevice device;
  Memory memory;
  ProductChoices* choices;
};

using Counts = std::vector<int>;

std::string measured_in_two_products(Gpu& gpu) {
  gpu.multiply(8);
  gpu.multiply(16);
  return gpu.choices->measured();
}

}  // namespace

TEST_CASE(
    "a product is timed once, computed by cuBLASLt's first algorithm until that is settled, and by the fastest then") {
  Gpu gpu({3, 2, 1, 4});
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.products() == Counts{kRunsTimed + 1, kRunsTimed, kRunsTimed, kRunsTimed});
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.multiply(8, 1) == 16);
  CHECK(gpu.products() == Counts{kRunsTimed + 3, kRunsTimed, kRunsTimed, kRunsTimed});
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 1);
  gpu.settle();
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.multiply(8, 1) == 16);
  CHECK(gpu.products() == Counts{kRunsTimed + 3, kRunsTimed, kRunsTimed + 2, kRunsTimed});
  CHECK(gpu.choices->summary().products == 1);
  CHECK(gpu.choices->summary().changed == 1);
  CHECK(gpu.choices->summary().saved_ms == Approx(2).epsilon(0.01));
}

TEST_CASE("where products are not timed cuBLASLt's first algorithm computes them") {
  Gpu gpu({3, 2, 1, 4}, patient());
  CHECK(gpu.choices == nullptr);
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.products() == Counts{1, 0, 0, 0});
}

TEST_CASE("a product that adds to its result is not timed, but the next one of its shape that does not") {
  Gpu gpu({2, 1});
  CHECK(gpu.multiply(8, 1) == 9);
  CHECK(gpu.products() == Counts{1, 0, 0, 0});
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.products() == Counts{kRunsTimed + 2, kRunsTimed, 0, 0});
  gpu.settle();
  CHECK(gpu.multiply(8, 1) == 16);
  CHECK(gpu.products() == Counts{kRunsTimed + 2, kRunsTimed + 1, 0, 0});
}

TEST_CASE("a product that is captured is not timed") {
  Gpu gpu({2, 1});
  CHECK(gpu.multiply(16) == 8);  // scratch is there
  const Counts before = gpu.products();
  const auto graph = gpu.device.capture([&] { gpu.enqueue(8, 0); });
  CHECK(gpu.products() == Counts{before[0] + 1, before[1], 0, 0});
  gpu.device.replay(*graph);
  gpu.device.synchronize();
  CHECK(static_cast<float>(gpu.part(2, 32).as<BFloat16>()[31]) == 8);
}

TEST_CASE("a gradient of GELU that overwrites what it is taken at is not computed twice") {
  const bool is_in_place = GENERATE(false, true);
  Gpu gpu({2, 1});
  const MatmulDims dims{.m = 4, .n = 8, .k = 8};
  const Buffer a = gpu.part(0, 32), b = gpu.part(1, 64), x = gpu.part(2, 32), dx = is_in_place ? x : gpu.part(3, 32);
  gpu.stream().enqueue({"linear_dx_gelu", {a, b, x}, {dx}, cuda_kernels().scratch.matmul(dims)},
                       [=](ExecContext& exec) {
                         cuda_kernels().matmul_gelu_backward(exec, x, {dx, a, b, {}}, dims);
                       });
  gpu.device.synchronize();
  CHECK(gpu.products() == (is_in_place ? Counts{1, 0, 0, 0} : Counts{kRunsTimed + 1, kRunsTimed, 0, 0}));
  CHECK(static_cast<float>(dx.as<BFloat16>()[31]) == Approx(8 * 1.0829641).epsilon(0.01));
}

TEST_CASE("a candidate that is hardly faster than the first one is left where it is") {
  const double ms = GENERATE(0.99, 0.9);
  Gpu gpu({100, 100 * ms});
  gpu.multiply();
  gpu.settle();
  CHECK(gpu.choices->summary().changed == (ms == 0.9 ? 1 : 0));
}

TEST_CASE("a candidate that fails is left out") {
  Gpu gpu({2, 1, 1.5});
  int calls = 0;
  // The fifth call is the second candidate's first one.
  gpu.cublas.know_candidates(3, [&](int, int candidate) {
    if (++calls == kRunsTimed) gpu.cublas.fail("cublasLtMatmul", cublas::kNotSupported);
    return std::vector{2.0, 1.0, 1.5}[static_cast<std::size_t>(candidate)];
  });
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.products() == Counts{kRunsTimed + 1, 0, kRunsTimed, 0});
  gpu.settle();
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.cublas.products_by(2) == kRunsTimed + 1);
}

TEST_CASE("what was timed is a line a product, behind what it is for, and chooses the same elsewhere") {
  std::string text;
  {
    Gpu gpu({4, 1});
    text = measured_in_two_products(gpu);
    CHECK_THAT(text, Catch::StartsWith(gpu.choices->made_for() + "\nproduct: candidate, its ms,"));
    CHECK_THAT(gpu.choices->made_for(), Catch::Contains("Emulated") && Catch::EndsWith(", cuBLASLt 130200"));
    CHECK_THAT(text, Catch::Contains("\nm 4, n 8, k 8, bf16 to bf16, aligned 256 256 256: 2 "));
  }
  Gpu gpu({4, 1});
  gpu.choices->settle(text);
  CHECK(gpu.multiply(8) == 8);
  CHECK(gpu.multiply(16) == 8);
  CHECK(gpu.multiply(24) == 8);  // which nobody has timed
  CHECK(gpu.products() == Counts{1, 2, 0, 0});
  CHECK(gpu.choices->summary().products == 2);
}

TEST_CASE("what an earlier run chose computes its products from the first on, and others are timed and join it") {
  std::string text;
  {
    Gpu earlier({4, 1});
    text = measured_in_two_products(earlier);
  }
  Gpu gpu({4, 1});
  gpu.choices->adopt(text);
  CHECK(gpu.multiply(8) == 8);
  CHECK(gpu.products() == Counts{0, 1, 0, 0});
  CHECK(gpu.choices->measured() == text);
  CHECK(gpu.multiply(24) == 8);
  CHECK(gpu.products() == Counts{kRunsTimed + 1, kRunsTimed + 1, 0, 0});
  const std::string both = gpu.choices->measured();
  CHECK_THAT(both, Catch::StartsWith(gpu.choices->made_for() + "\n") && Catch::Contains("\nm 4, n 8, ") &&
                       Catch::Contains("\nm 4, n 24, ") && !Catch::Contains("n 16"));  // of which there was none
  gpu.choices->settle(both);
  gpu.multiply(24);
  CHECK(gpu.products() == Counts{kRunsTimed + 1, kRunsTimed + 2, 0, 0});
}

TEST_CASE("lines of choices that cannot be read choose nothing") {
  Gpu gpu({4, 1});
  gpu.multiply();
  const std::string whole = gpu.choices->measured(), cut = whole.substr(0, whole.rfind(' '));
  gpu.choices->settle("what is that\n" + cut + "\n: 1 2\n\n");
  CHECK(gpu.choices->summary().products == 0);
  CHECK(gpu.multiply() == 8);
  CHECK(gpu.products() == Counts{kRunsTimed + 2, kRunsTimed, 0, 0});
  gpu.choices->settle(whole);
  CHECK(gpu.choices->summary().products == 1);
}

TEST_CASE("events that products are timed by are given back, whether that is settled or not") {
  const bool is_settled = GENERATE(false, true);
  EmulatedDriver driver({.kernels = emulated_kernels()});
  EmulatedCublas cublas(driver);
  {
    CudaDevice device(timed(), {driver.table(), cublas.table()});
    Stream& stream = device.stream(StreamRole::compute);
    const Memory memory = device.pool().acquire(4096, stream, "activation");
    const Buffer all = memory.buffer(DType::f32, 1024);
    const MatmulDims dims{.m = 2, .n = 2, .k = 3};
    stream.enqueue({"linear", {all.slice(0, 512)}, {all.slice(512, 4)}, cuda_kernels().scratch.matmul(dims)},
                   [=](ExecContext& exec) {
                     cuda_kernels().matmul(exec, all.slice(512, 4), all.slice(0, 6), all.slice(256, 6), {}, dims);
                   });
    device.synchronize();
    ProductChoices& choices = *device.context().product_choices();
    if (is_settled) choices.settle(choices.measured());
  }
  CHECK(driver.live_handles() == 0);
  CHECK(cublas.live_handles() == 0);
}

}  // namespace product_choices_test
