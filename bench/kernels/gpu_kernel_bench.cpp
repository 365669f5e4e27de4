#include "bench/kernels/gpu_kernel_bench.h"

#include <chrono>

#include "kernels/cudnn.h"

namespace zs::bench {
namespace {

/// A GPU's rows stand beside the only ceilings that there are.
constexpr int kThreads = 1;

DeviceOptions patient(bool cudnn_attention = false) {
  DeviceOptions options;
  options.sync_timeout_s = kKernelTimeoutS;
  options.cudnn_attention = cudnn_attention;
  if (cudnn_attention) open_cudnn();
  return options;
}

}  // namespace

GpuKernelBench::GpuKernelBench(const KernelOptions& options, const TrainPlan::MakeDevice& make_device,
                               const GpuBenchSizes& sizes)
    : options_(options),
      sizes_(sizes),
      cases_(selected_cases(options, sizes.cases)),
      device_(make_device(DeviceKind::cuda, patient(options.cudnn))),
      host_device_(Device::create(DeviceKind::cpu, patient())),
      world_(make_single_world({})),
      ranks_(*world_, *host_device_),
      cache_bytes_(gpu_of(*device_).l2_bytes) {}

KernelReport GpuKernelBench::run() {
  const CudaGpu& gpu = gpu_of(*device_);
  KernelReport report{.isa = isa_of(gpu), .gpu = gpu.name, .cache_bytes = cache_bytes_};
  for (const KernelCase& one : cases_) {
    report.rows.push_back(measure(one));
    measure_ceiling(one, report.ceilings[kThreads]);
  }
  return report;
}

KernelReport::Row GpuKernelBench::measure(const KernelCase& kernel_case) {
  using Clock = std::chrono::steady_clock;
  ColdCalls cold(*device_, kernel_case, cache_bytes_);
  GpuCalls calls(*device_, kernel_case.text(), cold.calls);
  const std::int64_t count = calls.count_in(sizes_.ceilings.sample_ms);
  std::vector<double> ms;
  const auto end = Clock::now() + std::chrono::duration<double>(options_.min_time_s);
  while (Clock::now() < end || ms.size() < kFewestSamples) ms.push_back(calls.run(count) / static_cast<double>(count));
  return row_of(kernel_case, kThreads, count * static_cast<std::int64_t>(ms.size()), ms);
}

void GpuKernelBench::measure_ceiling(const KernelCase& kernel_case, KernelReport::Ceilings& ceilings) {
  if (kernel_case.bound == Bound::memory) {
    if (!copies_) copies_ = std::make_unique<GpuCopyCeiling>(*device_, ranks_, sizes_.ceilings);
    copies_->measure();
    ceilings.copy_gb_per_s = copies_->gb_per_s();
    ceilings.memcpy_gb_per_s = copies_->driver_gb_per_s();
  } else if (kernel_case.bound == Bound::products) {
    const auto place =
        products_.try_emplace(kernel_case.dtype, *device_, ranks_, kernel_case.dtype, sizes_.ceilings).first;
    ceilings.product_gflops[kernel_case.dtype] = place->second.measure();
  }
}

}  // namespace zs::bench
