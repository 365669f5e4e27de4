#include "model/train/plan/ceiling.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "kernels/kernels.h"

namespace zs {
namespace {

constexpr std::int64_t kSize = 1024;
constexpr int kRounds = 4;

}  // namespace

double product_rate_gflops(World& world, const DeviceOptions& options, DType dtype) {
  using Clock = std::chrono::steady_clock;
  const auto device = Device::create(DeviceKind::cpu, options);
  const auto comm = world.communicator();
  Stream& stream = device->stream(StreamRole::compute);
  std::array<Memory, 3> memory;
  for (Memory& block : memory) block = device->pool().acquire(kSize * kSize * size_of(dtype), stream, "ceiling");
  const auto matrix = [&](std::size_t i) { return memory[i].buffer(dtype, kSize * kSize); };
  const Buffer a = matrix(0), b = matrix(1), c = matrix(2);
  stream.enqueue({"ones", {}, {a, b}}, [a, b](ExecContext&) {
    for (const Buffer& in : {a, b})
      std::memset(in.data, 0x3c, static_cast<std::size_t>(in.bytes()));  // some finite number
  });
  std::array<double, kRounds> rates{};
  for (double& rate : rates) {
    comm->barrier(stream, "ceiling");
    stream.enqueue({"product", {a, b}, {c}}, [a, b, c, &rate](ExecContext& exec) {
      const auto start = Clock::now();
      cpu_kernels().matmul(exec, c, a, b, {}, {.m = kSize, .n = kSize, .k = kSize, .transpose_b = true});
      rate = 2e-9 * kSize * kSize * kSize / std::chrono::duration<double>(Clock::now() - start).count();
    });
  }
  comm->all_reduce(stream, "ceiling", {rates.data(), kRounds, DType::f64, DeviceKind::cpu}, ReduceOp::sum);
  device->synchronize();
  return *std::max_element(rates.begin(), rates.end());
}

double copy_rate_gb_s(World& world, const DeviceOptions& options) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kElems = std::int64_t{8} << 20;
  const auto device = Device::create(DeviceKind::cpu, options);
  const auto comm = world.communicator();
  Stream& stream = device->stream(StreamRole::compute);
  const Memory from = device->pool().acquire(kElems * size_of(DType::f32), stream, "ceiling"),
               to = device->pool().acquire(kElems * size_of(DType::f32), stream, "ceiling");
  const Buffer in = from.buffer(DType::f32, kElems), out = to.buffer(DType::f32, kElems);
  stream.enqueue({"zero", {}, {in, out}}, [in, out](ExecContext& exec) {
    for (const Buffer& buffer : {in, out}) cpu_kernels().zero(exec, buffer);
  });
  std::array<double, kRounds> rates{};
  for (double& rate : rates) {
    comm->barrier(stream, "ceiling");
    stream.enqueue({"copy", {in}, {out}}, [in, out, &rate](ExecContext& exec) {
      const auto start = Clock::now();
      cpu_kernels().copy(exec, out, in);
      rate = 2e-9 * static_cast<double>(in.bytes()) / std::chrono::duration<double>(Clock::now() - start).count();
    });
  }
  comm->all_reduce(stream, "ceiling", {rates.data(), kRounds, DType::f64, DeviceKind::cpu}, ReduceOp::sum);
  device->synchronize();
  return *std::max_element(rates.begin(), rates.end());
}

double flops_per_token(std::int64_t parameters, std::int64_t layers, std::int64_t width, std::int64_t sequence) {
  return 6.0 * static_cast<double>(parameters) +
         6.0 * static_cast<double>(layers) * static_cast<double>(width * sequence);
}

}  // namespace zs
