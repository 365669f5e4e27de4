#include "model/train/plan/update_choice.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/train/config/config_offload.h"
#include "model/train/config/optimizer_kind.h"
#include "runtime/tensor/context.h"

namespace zs {
namespace {

constexpr std::int64_t kElems = std::int64_t{4} << 20;
constexpr int kTimings = 3;

/// Time of the fastest run, in ns.
template <class Body>
double best_ns(const Body& body) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < kTimings; ++round) {
    const auto begin = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  return best;
}

/// Time of AdamW for each byte that it reads or writes.
double host_ns_per_byte(int threads) {
  std::vector<float> memory(static_cast<std::size_t>(4 * kElems), 0.5f);
  const auto part = [&](std::int64_t i) {
    return Buffer{memory.data() + i * kElems, kElems, DType::f32, DeviceKind::cpu};
  };
  StepScalars step{
      .lr = 1e-3f, .bias_correction1 = 1, .bias_correction2 = 1, .clip_coefficient = 1, .grad_norm = 0, .skip = 0};
  const Buffer scalars{&step, sizeof step / sizeof(float), DType::f32, DeviceKind::cpu};
  ExecContext exec(threads, nullptr);
  const UpdateRange all{part(0), part(1), {}, part(2), part(3), scalars};
  return best_ns([&] { cpu_kernels().update(exec, all, AdamWOptions{}); }) / static_cast<double>(28 * kElems);
}

double link_ns_per_byte(Device& device) {
  const Context context(device);
  Stream& offload = device.stream(StreamRole::offload);
  const std::int64_t bytes = kElems * size_of(DType::f32);
  const Memory here = device.pool().acquire(bytes, offload, "ceiling"),
               there = device.pinned_memory().acquire(bytes, offload, "ceiling");
  const Buffer out = here.buffer(DType::f32, kElems), in = there.buffer(DType::f32, kElems);
  const auto copy = [&](const Buffer& to, const Buffer& from) {
    offload.enqueue({"copy", {from}, {to}},
                    [&kernels = context.kernels(), to, from](ExecContext& exec) { kernels.copy(exec, to, from); });
  };
  return best_ns([&] {
           copy(out, in);
           copy(in, out);
           offload.synchronize();
         }) /
         static_cast<double>(2 * bytes);
}

}  // namespace

bool may_update_on_host(const Config& config) {
  return optimizer_kind(config).updates_on_host && config.train.average == 0 && config.offload.weights == "host" &&
         config.offload.gradients == "host" && (config.offload.moments == "host" || !has_moments(config));
}

UpdateCosts measure_update(const Config& config, Device& device) {
  const bool is_cpu = device.kind() == DeviceKind::cpu;
  const double moments = optimizer_kind(config).moments(config);
  const double gradient = 4, state = 2 * 4 * (1 + moments), copy = config.precision.param == "bf16" ? 2 : 0;
  const double link =
      is_cpu && config.offload.cpu_link_gbs > 0 ? 1 / config.offload.cpu_link_gbs : link_ns_per_byte(device);
  // A CPU device has threads for the compute stream alone.
  const double host = host_ns_per_byte(is_cpu ? 1 : device.options().threads);
  return {.device_ns = (gradient + state) * link, .host_ns = (gradient + state + copy) * host + copy * link};
}

}  // namespace zs
