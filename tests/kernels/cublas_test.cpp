#include <catch2/catch.hpp>

#include "kernels/kernels.h"
#include "runtime/device/cuda_device.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/message_of.h"

using namespace zs;
using namespace zs::test;

namespace {

DeviceOptions rounding(bool tf32) {
  DeviceOptions options = patient();
  options.tf32 = tf32;
  return options;
}

/// A CUDA device with products, on an emulated GPU.
struct Gpu {
  explicit Gpu(bool tf32 = false)
      : device(rounding(tf32), {driver.table(), cublas.table()}), memory(device.pool().acquire(kElems * 4, stream(), "activation")) {}

  Stream& stream() { return device.stream(StreamRole::compute); }
  /// `elems` elements of the device's memory, `skipped` elements behind its start; every one 1.
  Buffer ones(DType dtype, std::int64_t skipped, std::int64_t elems) {
    const Buffer part = memory.buffer(dtype, kElems).slice(skipped, elems);
    for (std::int64_t i = 0; i < elems; ++i) {
      if (dtype == DType::f32)
        part.as<float>()[i] = 1.0f;
      else
        part.as<BFloat16>()[i] = BFloat16(1.0f);
    }
    return part;
  }
  void multiply(const Buffer& c, const Buffer& a, const Buffer& b, const Buffer& bias, const MatmulDims& dims) {
    stream().enqueue({"linear", {a, b}, {c}, cuda_kernels().scratch.matmul(dims)},
                     [=](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, bias, dims); });
  }

  static constexpr std::int64_t kElems = 4096;
  EmulatedDriver driver{{.seed = 3, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};
  CudaDevice device;
  Memory memory;
};

}  // namespace

TEST_CASE("a product runs in its stream's order, by an algorithm that is asked for once a shape") {
  Gpu gpu;
  const Buffer a = gpu.ones(DType::f32, 0, 16 * 8), b = gpu.ones(DType::f32, 512, 8 * 4), c = gpu.ones(DType::f32, 1024, 16 * 4);
  for (int i = 0; i < 3; ++i) gpu.multiply(c, a, b, {}, {.m = 16, .n = 4, .k = 8, .beta = 1.0f});
  CHECK(c.as<float>()[63] == 1.0f);
  gpu.device.synchronize();
  CHECK(c.as<float>()[63] == 1.0f + 3 * 8);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 1);
  gpu.multiply(c, a, b, {}, {.m = 16, .n = 4, .k = 8});
  gpu.device.synchronize();
  CHECK(c.as<float>()[63] == 8);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 2);
  CHECK(gpu.cublas.calls("cublasLtMatmul") == 4);
}

TEST_CASE("an algorithm is told how operands are aligned, and is not used for what is aligned less") {
  Gpu gpu;
  const std::int64_t skipped = GENERATE(0, 1, 2, 4, 16), operand = GENERATE(0, 1, 2);
  const auto at = [&](std::int64_t which) { return 1024 * which + (which == operand ? skipped : 0); };
  const MatmulDims dims{.m = 16, .n = 4, .k = 8};
  const Buffer a = gpu.ones(DType::bf16, at(0), 16 * 8), b = gpu.ones(DType::bf16, at(1), 8 * 4), c = gpu.ones(DType::bf16, at(2), 16 * 4);
  gpu.multiply(gpu.ones(DType::bf16, 3072, 16 * 4), gpu.ones(DType::bf16, 0, 16 * 8), gpu.ones(DType::bf16, 1024, 8 * 4), {}, dims);
  gpu.multiply(c, a, b, {}, dims);
  gpu.device.synchronize();
  CHECK(static_cast<float>(c.as<BFloat16>()[63]) == 8);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == (skipped == 0 || skipped == 16 ? 1 : 2) + (skipped == 16));
}

TEST_CASE("a bias that is of another type than the result, or lies askew, is moved first") {
  Gpu gpu;
  const std::int64_t skipped = GENERATE(0, 1, 3, 8);
  const DType bias_dtype = GENERATE(DType::f32, DType::bf16);
  const Buffer a = gpu.ones(DType::bf16, 0, 16 * 8), b = gpu.ones(DType::bf16, 512, 8 * 4), c = gpu.ones(DType::f32, 1024, 16 * 4),
               bias = gpu.ones(bias_dtype, 3008 + skipped, 4);
  for (int i = 0; i < 2; ++i) gpu.multiply(c, a, b, bias, {.m = 16, .n = 4, .k = 8});
  gpu.device.synchronize();
  CHECK(c.as<float>()[63] == 9);
  const bool is_read_in_place = bias_dtype == DType::f32 && skipped % 4 == 0;
  CHECK(gpu.driver.calls("cuLaunchKernel") == (is_read_in_place ? 0 : 2));
}

TEST_CASE("products of f32 round their operands only where that is allowed") {
  const bool tf32 = GENERATE(false, true);
  Gpu gpu(tf32);
  const Buffer a = gpu.ones(DType::f32, 0, 1), b = gpu.ones(DType::f32, 512, 1), c = gpu.ones(DType::f32, 1024, 1);
  a.as<float>()[0] = 1.0f + 0x1.0p-20f;
  gpu.multiply(c, a, b, {}, {.m = 1, .n = 1, .k = 1});
  gpu.device.synchronize();
  CHECK(c.as<float>()[0] == (tf32 ? 1.0f : 1.0f + 0x1.0p-20f));
}

TEST_CASE("a product works in the scratch that its op declares") {
  Gpu gpu;
  // Long sums over few results: the emulated library wants a workspace.
  const MatmulDims dims{.m = 2, .n = 2, .k = 512};
  const Buffer a = gpu.ones(DType::f32, 0, 1024), b = gpu.ones(DType::f32, 1024, 1024), c = gpu.ones(DType::f32, 2048, 4);
  gpu.multiply(c, a, b, {}, dims);
  gpu.device.synchronize();
  CHECK(c.as<float>()[3] == 512);
  CHECK(gpu.device.memory().live_by_label().at("scratch") >= cuda_kernels().scratch.matmul(dims));
  gpu.stream().enqueue({"linear", {a, b}, {c}}, [=](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, {}, dims); });
  CHECK_THROWS_WITH(gpu.device.synchronize(), Catch::Contains("bytes of scratch are used, 0 were declared"));
}

TEST_CASE("every function of cuBLASLt that fails is an error that names it and the product, and nothing is lost") {
  const auto multiply = [](Gpu& gpu) {
    const Buffer a = gpu.ones(DType::f32, 0, 6), b = gpu.ones(DType::f32, 512, 6), c = gpu.ones(DType::f32, 1024, 4);
    gpu.multiply(c, a, b, gpu.ones(DType::f32, 2048, 2), {.m = 2, .n = 2, .k = 3});
    gpu.device.synchronize();
  };
  std::set<std::string> functions;
  {
    Gpu gpu;
    multiply(gpu);
    functions = gpu.cublas.functions_called();
  }
  CHECK(functions.size() == 9);
  for (const std::string& function : functions) {
    if (function.find("Destroy") != function.npos) continue;
    Gpu gpu;
    gpu.cublas.fail(function, 14);
    INFO(function);
    CHECK_THAT(message_of([&] { multiply(gpu); }),
               Catch::StartsWith(function + " for the product m 2, n 2, k 3: cuBLAS status 14, a made-up status (GPU 0 (Emulated)") &&
                   Catch::Contains("last enqueued: linear"));
    CHECK_NOTHROW(multiply(gpu));
  }
}

TEST_CASE("cuBLASLt's objects are given back with the device") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  EmulatedCublas cublas(driver);
  {
    CudaDevice device(patient(), {driver.table(), cublas.table()});
    Stream& stream = device.stream(StreamRole::compute);
    const Memory memory = device.pool().acquire(4096, stream, "activation");
    const Buffer all = memory.buffer(DType::f32, 1024), a = all.slice(0, 6), b = all.slice(256, 6), c = all.slice(512, 4);
    const MatmulDims dims{.m = 2, .n = 2, .k = 3};
    stream.enqueue({"linear", {a, b}, {c}, cuda_kernels().scratch.matmul(dims)},
                   [&](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, {}, dims); });
    device.synchronize();
    CHECK(cublas.live_handles() > 0);
  }
  CHECK(cublas.live_handles() == 0);
}

TEST_CASE("a product that cuBLASLt cannot compute, and one without cuBLASLt, are errors that say so") {
  Gpu gpu;
  const Buffer a = gpu.ones(DType::f32, 0, 6), b = gpu.ones(DType::f32, 512, 6), c = gpu.ones(DType::f32, 1024, 4);
  gpu.cublas.know_nothing();
  gpu.multiply(c, a, b, {}, {.m = 2, .n = 2, .k = 3});
  CHECK_THROWS_WITH(gpu.device.synchronize(), Catch::StartsWith("cuBLASLt has no algorithm for the product m 2, n 2, k 3"));

  DeviceOptions shared = patient();
  shared.shares_gpu = true;
  CudaDevice without(shared, gpu.driver.table());
  Stream& stream = without.stream(StreamRole::compute);
  const MatmulDims dims{.m = 2, .n = 2, .k = 3};
  stream.enqueue({"linear", {a, b}, {c}, cuda_kernels().scratch.matmul(dims)},
                 [&](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, {}, dims); });
  CHECK_THROWS_WITH(without.synchronize(), Catch::Contains("whose device was made without cuBLASLt"));
}
