#include "bench/kernels/gpu_calls.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/kernels/kernel_case.h"
#include "runtime/device/cuda_device.h"

namespace zs::bench {

const CudaGpu& gpu_of(const Device& device) { return dynamic_cast<const CudaDevice&>(device).gpu(); }

std::string isa_of(const CudaGpu& gpu) { return fmt::format("sm_{}{}", gpu.major, gpu.minor); }

double GpuCalls::run(std::int64_t count) {
  using Clock = std::chrono::steady_clock;
  Stream& stream = device_.stream(StreamRole::compute);
  stream.synchronize();
  const auto start = Clock::now();
  const std::int64_t scratch = device_.options().cudnn_attention ? kCudnnScratchBytes : kGpuScratchBytes;
  stream.enqueue({name_, {}, {}, scratch}, [&](ExecContext& exec) {
    for (std::int64_t i = 0; i < count; ++i) calls_[next_++ % calls_.size()](exec);
  });
  stream.synchronize();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::int64_t GpuCalls::count_in(double ms) {
  constexpr double kMost = 1e5;
  const auto round = static_cast<std::int64_t>(calls_.size());
  run(round);
  const double call_ms = run(round) / static_cast<double>(round);
  return static_cast<std::int64_t>(std::clamp(std::ceil(ms / std::max(call_ms, 1e-6)), 1.0, kMost));
}

}  // namespace zs::bench
