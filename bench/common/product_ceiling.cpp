#include "bench/common/product_ceiling.h"

#include <algorithm>
#include <chrono>

#include "bench/common/arrays.h"
#include "bench/common/clock.h"
#include "bench/common/plain_product.h"
#include "kernels/kernels.h"

namespace zs::bench {
namespace {

constexpr std::int64_t kSize = 2048;

double rate_since(Clock::time_point start) {
  return 2e-9 * kSize * kSize * kSize / std::chrono::duration<double>(Clock::now() - start).count();
}

/// Kept with the stream, whose thread must make and destroy it.
struct KeptPlainProduct {
  std::unique_ptr<PlainProduct> product;
};

}  // namespace

ProductCeiling::ProductCeiling(World& world, const DeviceOptions& options, DType dtype)
    : device_(Device::create(DeviceKind::cpu, options)), ranks_(world, *device_) {
  Stream& stream = device_->stream(StreamRole::compute);
  for (Memory& block : memory_) block = device_->pool().acquire(kSize * kSize * size_of(dtype), stream, "bench");
  const auto matrix = [&](std::size_t i) { return memory_[i].buffer(dtype, kSize * kSize); };
  operands_ = {matrix(0), matrix(1), matrix(2)};
  for (const Buffer& in : {operands_.a, operands_.b}) enqueue_random(stream, in, -0.5f, 0.5f);
  products_ = {through_table(false), through_table(true), through_library(dtype)};
}

double ProductCeiling::measure(int rounds) {
  Stream& stream = device_->stream(StreamRole::compute);
  std::vector<double> rates(products_.size() * static_cast<std::size_t>(rounds));
  for (std::size_t i = 0; i < rates.size(); ++i) {
    ranks_.line_up();
    stream.enqueue({"product", {operands_.a, operands_.b}, {operands_.c}},
                   [&product = products_[i % products_.size()], operands = operands_,
                    rate = &rates[i]](ExecContext& exec) { *rate = product(exec, operands); });
  }
  device_->synchronize();
  ranks_.reduce(rates, ReduceOp::sum);
  for (const double rate : rates) best_ = std::max(best_, rate);
  return best_;
}

ProductCeiling::Product ProductCeiling::through_table(bool transpose_b) {
  return [transpose_b](ExecContext& exec, const Operands& operands) {
    const auto start = Clock::now();
    cpu_kernels().matmul(exec, operands.c, operands.a, operands.b, {},
                         {.m = kSize, .n = kSize, .k = kSize, .transpose_b = transpose_b, .beta = 0});
    return rate_since(start);
  };
}

ProductCeiling::Product ProductCeiling::through_library(DType dtype) {
  return [dtype](ExecContext& exec, const Operands& operands) {
    auto& kept = exec.state<KeptPlainProduct>().product;
    if (!kept) kept = std::make_unique<PlainProduct>(dtype, kSize, exec.threads());
    if (!kept->exists()) return 0.0;
    const auto start = Clock::now();
    kept->run(operands.c, operands.a, operands.b);
    return rate_since(start);
  };
}

}  // namespace zs::bench
