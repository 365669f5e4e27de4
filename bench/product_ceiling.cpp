#include "bench/product_ceiling.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "bench/plain_product.h"
#include "bench/ranks.h"
#include "kernels/kernels.h"
#include "runtime/base/random.h"

namespace zs::bench {
namespace {

constexpr std::int64_t kSize = 2048;
constexpr double kFlops = 2.0 * kSize * kSize * kSize;

using Clock = std::chrono::steady_clock;

struct Operands {
  Buffer c, a, b;
};

/// Numbers in [-0.5, 0.5).
void fill(const KernelTable& kernels, ExecContext& exec, Buffer out, std::uint64_t stream) {
  const CounterRng rng(1, stream);
  std::vector<float> values(static_cast<std::size_t>(out.elems));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.uniform(i) - 0.5);
  const Buffer in{values.data(), out.elems, DType::f32, DeviceKind::cpu};
  out.dtype == DType::f32 ? kernels.copy(exec, out, in) : kernels.cast(exec, out, in);
}

/// Runs on the stream's thread; GFLOP/s, or 0 where the product does not exist.
using Product = std::function<double(ExecContext&, const Operands&)>;

Product through_table(const KernelTable& kernels, bool transpose_b) {
  return [&kernels, transpose_b](ExecContext& exec, const Operands& operands) {
    const auto start = Clock::now();
    kernels.matmul(exec, operands.c, operands.a, operands.b, {},
                   {.m = kSize, .n = kSize, .k = kSize, .transpose_b = transpose_b, .beta = 0});
    return kFlops * 1e-9 / std::chrono::duration<double>(Clock::now() - start).count();
  };
}

/// Kept with the stream, as its thread must make and destroy it.
struct KeptPlainProduct {
  std::unique_ptr<PlainProduct> product;
};

Product through_library(DType dtype) {
  return [dtype](ExecContext& exec, const Operands& operands) {
    auto& kept = exec.state<KeptPlainProduct>().product;
    if (!kept) kept = std::make_unique<PlainProduct>(dtype, kSize, exec.threads());
    if (!kept->exists()) return 0.0;
    const auto start = Clock::now();
    kept->run(operands.c, operands.a, operands.b);
    return kFlops * 1e-9 / std::chrono::duration<double>(Clock::now() - start).count();
  };
}

}  // namespace

double product_ceiling_gflops(World& world, const DeviceOptions& options, DType dtype, int rounds) {
  const auto device = Device::create(DeviceKind::cpu, options);
  Ranks ranks(world, *device);
  Stream& stream = device->stream(StreamRole::compute);
  const KernelTable& kernels = cpu_kernels();
  std::array<Memory, 3> memory;
  for (Memory& block : memory) block = device->pool().acquire(kSize * kSize * size_of(dtype), stream, "bench");
  const auto matrix = [&](std::size_t i) { return memory[i].buffer(dtype, kSize * kSize); };
  const Operands operands{matrix(0), matrix(1), matrix(2)};
  stream.enqueue({"fill", {}, {operands.a, operands.b}}, [&kernels, operands](ExecContext& exec) {
    fill(kernels, exec, operands.a, 1);
    fill(kernels, exec, operands.b, 2);
  });

  const std::vector<Product> products = {through_table(kernels, false), through_table(kernels, true), through_library(dtype)};
  std::vector<double> rates(products.size() * static_cast<std::size_t>(rounds));
  for (std::size_t i = 0; i < rates.size(); ++i) {
    ranks.line_up();
    stream.enqueue(
        {"product", {operands.a, operands.b}, {operands.c}},
        [&product = products[i % products.size()], operands, rate = &rates[i]](ExecContext& exec) { *rate = product(exec, operands); });
  }
  device->synchronize();
  ranks.reduce(rates, ReduceOp::sum);
  return *std::max_element(rates.begin(), rates.end());
}

}  // namespace zs::bench
