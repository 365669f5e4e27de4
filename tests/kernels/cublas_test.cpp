#include <catch2/catch.hpp>

#include "kernels/kernels.h"
#include "runtime/device/cuda_device.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/message_of.h"

namespace cublas_test {

using namespace zs;
using namespace zs::test;

namespace {

DeviceOptions with_products(const ProductOptions& products) {
  DeviceOptions options = patient();
  options.tf32 = products.tf32;
  options.fuses_gelu = products.fuses_gelu;
  return options;
}

/// A CUDA device with products, on an emulated GPU.
struct Gpu {
  explicit Gpu(const ProductOptions& products = {}, int major = 9)
      : driver({.seed = 3, .major = major, .kernels = emulated_kernels()}),
        device(with_products(products), {driver.table(), cublas.table()}),
        memory(device.pool().acquire(kElems * 4, stream(), "activation")) {}

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
  /// The product with GELU, then that with its gradient, of ones of this type, (m, k) and (k, n).
  void multiply_with_gelu(DType dtype, const MatmulDims& dims) {
    const auto at = [&](std::int64_t which, std::int64_t elems) { return ones(dtype, 512 * which, elems); };
    const Buffer a = at(0, dims.m * dims.k), b = at(1, dims.k * dims.n), bias = at(2, dims.n),
                 sums = at(3, dims.m * dims.n), y = at(4, dims.m * dims.n), dx = at(5, dims.m * dims.n);
    const std::int64_t scratch = cuda_kernels().scratch.matmul(dims);
    stream().enqueue({"linear_gelu", {a, b, bias}, {sums, y}, scratch}, [=](ExecContext& exec) {
      cuda_kernels().matmul_gelu(exec, y, {sums, a, b, bias}, dims);
    });
    stream().enqueue({"linear_dx_gelu", {a, b, sums}, {dx}, scratch}, [=](ExecContext& exec) {
      cuda_kernels().matmul_gelu_backward(exec, sums, {dx, a, b, {}}, dims);
    });
    device.synchronize();
  }

  static constexpr std::int64_t kElems = 4096;
  EmulatedDriver driver;
  EmulatedCublas cublas{driver};
  CudaDevice device;
  Memory memory;
};

}  // namespace

TEST_CASE("a product runs in its stream's order, by an algorithm that is asked for once a shape") {
  Gpu gpu;
  const Buffer a = gpu.ones(DType::f32, 0, 16 * 8), b = gpu.ones(DType::f32, 512, 8 * 4),
               c = gpu.ones(DType::f32, 1024, 16 * 4);
  for (int i = 0; i < 3; ++i) gpu.multiply(c, a, b, {}, {.m = 16, .n = 4, .k = 8, .beta = 1.0f});
  CHECK(c.as<float>()[63] == 1.0f);
  gpu.device.synchronize();
  CHECK(c.as<float>()[63] == 1.0f + 3 * 8);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 1);
  gpu.multiply(c, a, b, {}, {.m = 16, .n = 4, .k = 8});
  gpu.device.synchronize();
  CHECK(c.as<float>()[63] == 8);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 1);  // whatever beta is
  CHECK(gpu.cublas.calls("cublasLtMatmul") == 4);
}

TEST_CASE("an algorithm is told how operands are aligned, and is not used for what is aligned less") {
  Gpu gpu;
  const std::int64_t skipped = GENERATE(0, 1, 2, 4, 16), operand = GENERATE(0, 1, 2);
  const auto at = [&](std::int64_t which) { return 1024 * which + (which == operand ? skipped : 0); };
  const MatmulDims dims{.m = 16, .n = 4, .k = 8};
  const Buffer a = gpu.ones(DType::bf16, at(0), 16 * 8), b = gpu.ones(DType::bf16, at(1), 8 * 4),
               c = gpu.ones(DType::bf16, at(2), 16 * 4);
  gpu.multiply(gpu.ones(DType::bf16, 3072, 16 * 4), gpu.ones(DType::bf16, 0, 16 * 8),
               gpu.ones(DType::bf16, 1024, 8 * 4), {}, dims);
  gpu.multiply(c, a, b, {}, dims);
  gpu.device.synchronize();
  CHECK(static_cast<float>(c.as<BFloat16>()[63]) == 8);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") ==
        (skipped == 0 || skipped == 16 ? 1 : 2) + (skipped == 16));
}

TEST_CASE("a bias that is of another type than the result, or lies askew, is moved first") {
  Gpu gpu;
  const std::int64_t skipped = GENERATE(0, 1, 3, 8);
  const DType bias_dtype = GENERATE(DType::f32, DType::bf16);
  const Buffer a = gpu.ones(DType::bf16, 0, 16 * 8), b = gpu.ones(DType::bf16, 512, 8 * 4),
               c = gpu.ones(DType::f32, 1024, 16 * 4), bias = gpu.ones(bias_dtype, 3008 + skipped, 4);
  for (int i = 0; i < 2; ++i) gpu.multiply(c, a, b, bias, {.m = 16, .n = 4, .k = 8});
  gpu.device.synchronize();
  CHECK(c.as<float>()[63] == 9);
  const bool is_read_in_place = bias_dtype == DType::f32 && skipped % 4 == 0;
  CHECK(gpu.driver.calls("cuLaunchKernel") == (is_read_in_place ? 0 : 2));
}

TEST_CASE("products of f32 round their operands only where that is allowed") {
  const bool tf32 = GENERATE(false, true);
  Gpu gpu({.tf32 = tf32});
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
  const Buffer a = gpu.ones(DType::f32, 0, 1024), b = gpu.ones(DType::f32, 1024, 1024),
               c = gpu.ones(DType::f32, 2048, 4);
  gpu.multiply(c, a, b, {}, dims);
  gpu.device.synchronize();
  CHECK(c.as<float>()[3] == 512);
  CHECK(gpu.device.memory().live_by_label().at("scratch") >= cuda_kernels().scratch.matmul(dims));
  gpu.stream().enqueue({"linear", {a, b}, {c}},
                       [=](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, {}, dims); });
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
               Catch::StartsWith(
                   function + " for the product m 2, n 2, k 3: cuBLAS status 14, a made-up status (GPU 0 (Emulated)") &&
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
    const Buffer all = memory.buffer(DType::f32, 1024), a = all.slice(0, 6), b = all.slice(256, 6),
                 c = all.slice(512, 4);
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
  CHECK_THROWS_WITH(gpu.device.synchronize(),
                    Catch::StartsWith("op linear: cuBLASLt has no algorithm for the product m 2, n 2, k 3"));

  DeviceOptions shared = patient();
  shared.shares_gpu = true;
  CudaDevice without(shared, gpu.driver.table());
  Stream& stream = without.stream(StreamRole::compute);
  const MatmulDims dims{.m = 2, .n = 2, .k = 3};
  stream.enqueue({"linear", {a, b}, {c}, cuda_kernels().scratch.matmul(dims)},
                 [&](ExecContext& exec) { cuda_kernels().matmul(exec, c, a, b, {}, dims); });
  CHECK_THROWS_WITH(without.synchronize(), Catch::Contains("whose device was made without cuBLASLt"));
}

TEST_CASE("GELU is left to products of bf16 whose rows are packs, on GPUs that are asked, and else to kernels") {
  struct Case {
    DType dtype;
    std::int64_t n;
    bool fuses, is_known, is_fused;
    int major = 9;
  };
  const Case c = GENERATE(Case{DType::bf16, 8, true, true, true}, Case{DType::bf16, 24, true, true, true},
                          Case{DType::bf16, 12, true, true, false}, Case{DType::f32, 8, true, true, false},
                          Case{DType::bf16, 8, false, true, false}, Case{DType::bf16, 8, true, false, false},
                          Case{DType::bf16, 8, true, true, false, 8}, Case{DType::bf16, 8, true, true, true, 10});
  Gpu gpu({.fuses_gelu = c.fuses}, c.major);
  if (!c.is_known) gpu.cublas.know_no_gelu();
  gpu.multiply_with_gelu(c.dtype, {.m = 4, .n = c.n, .k = 8});
  CHECK(gpu.cublas.gelu_products() == (c.is_fused ? 1 : 0));
  CHECK(gpu.cublas.gelu_gradient_products() == (c.is_fused ? 1 : 0));
  CHECK(gpu.driver.calls("cuLaunchKernel") == (c.is_fused ? 0 : 2));
}

TEST_CASE("an algorithm of a product is none of the same product with GELU, or with its gradient") {
  Gpu gpu;
  const MatmulDims dims{.m = 4, .n = 8, .k = 8};
  const Buffer a = gpu.ones(DType::bf16, 0, 32), b = gpu.ones(DType::bf16, 512, 64),
               bias = gpu.ones(DType::bf16, 1024, 8), c = gpu.ones(DType::bf16, 1536, 32);
  for (const Buffer& added : {Buffer{}, bias}) gpu.multiply(c, a, b, added, dims);
  gpu.multiply_with_gelu(DType::bf16, dims);
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 4);
  CHECK(gpu.cublas.gelu_products() == 1);
  CHECK(gpu.cublas.gelu_gradient_products() == 1);
}

TEST_CASE("a product with GELU that cuBLASLt has not is asked for once a shape") {
  Gpu gpu;
  gpu.cublas.know_no_gelu();
  for (int i = 0; i < 3; ++i) gpu.multiply_with_gelu(DType::bf16, {.m = 4, .n = 8, .k = 8});
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 4);  // with GELU and without, forward and backward
  CHECK(gpu.cublas.calls("cublasLtMatmul") == 6);
  gpu.multiply_with_gelu(DType::bf16, {.m = 2, .n = 8, .k = 8});
  CHECK(gpu.cublas.calls("cublasLtMatmulAlgoGetHeuristic") == 8);
}

TEST_CASE("the emulated cuBLASLt refuses GELU's input where it is missing, too narrow, askew or of another type") {
  struct Case {
    std::int64_t stride;
    std::uintptr_t address;
    int type, operands, status;
  };
  using namespace zs::cublas;
  const Case c = GENERATE(Case{8, 16, kBf16, kBf16, kSuccess}, Case{16, 4096, kBf16, kBf16, kSuccess},
                          Case{8, 0, kBf16, kBf16, kInvalidValue}, Case{0, 16, kBf16, kBf16, kInvalidValue},
                          Case{12, 16, kBf16, kBf16, kInvalidValue}, Case{8, 16, kF32, kBf16, kInvalidValue},
                          Case{8, 8, kBf16, kBf16, kNotSupported});
  const std::int32_t epilogue = GENERATE(kGeluEpilogue, kGeluGradientEpilogue);
  Gpu gpu;
  const CublasLt& library = *gpu.cublas.table();
  int status = -1;
  gpu.stream().enqueue({"ask"}, [&](ExecContext&) {
    CublasLt::Handle* handle = nullptr;
    CublasLt::Operation* operation = nullptr;
    CublasLt::Layout *operand = nullptr, *result = nullptr;
    CublasLt::Preference* preference = nullptr;
    library.create(&handle);
    library.operation_create(&operation, kComputeF32, kF32);
    library.operation_set(operation, kEpilogue, &epilogue, sizeof(epilogue));
    library.operation_set(operation, kAuxPointer, &c.address, sizeof(c.address));
    library.operation_set(operation, kAuxStride, &c.stride, sizeof(c.stride));
    library.operation_set(operation, kAuxType, &c.type, sizeof(c.type));
    library.layout_create(&operand, c.operands, 8, 8, 8);
    library.layout_create(&result, kBf16, 8, 8, 8);
    library.preference_create(&preference);
    CublasLt::Candidate candidate{};
    int found = 0;
    status =
        library.find_algorithms(handle, operation, operand, operand, result, result, preference, 1, &candidate, &found);
    library.preference_destroy(preference);
    for (CublasLt::Layout* layout : {operand, result}) library.layout_destroy(layout);
    library.operation_destroy(operation);
    library.destroy(handle);
  });
  gpu.device.synchronize();
  CHECK(status == c.status);
}

}  // namespace cublas_test
