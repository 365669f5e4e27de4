#pragma once

#include <map>
#include <memory>
#include <vector>

#include "bench/kernels/gpu_ceilings.h"
#include "bench/kernels/kernel_bench.h"
#include "model/train/plan/plan.h"

namespace zs::bench {

/// How large the cases and the ceilings are. Others than these only in tests.
struct GpuBenchSizes {
  CaseSizes cases = gpu_case_sizes();
  GpuCeilingSizes ceilings = {};
};

/// KernelBench for this process's first GPU: kernels one after the other, and the ceiling of its kind again after each
/// of them. One host thread uses it.
class GpuKernelBench {
 public:
  /// Error(config) where there is no GPU, or no back end for it in this build.
  explicit GpuKernelBench(const KernelOptions& options, const TrainPlan::MakeDevice& make_device = Device::create,
                          const GpuBenchSizes& sizes = {});
  KernelReport run();

 private:
  KernelReport::Row measure(const KernelCase& kernel_case);
  void measure_ceiling(const KernelCase& kernel_case, KernelReport::Ceilings& ceilings);

  const KernelOptions options_;
  const GpuBenchSizes sizes_;
  std::vector<KernelCase> cases_;
  std::unique_ptr<Device> device_, host_device_;
  std::unique_ptr<World> world_;
  Ranks ranks_;
  std::int64_t cache_bytes_ = 0;
  std::unique_ptr<GpuCopyCeiling> copies_;
  std::map<DType, GpuProductCeiling> products_;
};

}  // namespace zs::bench
