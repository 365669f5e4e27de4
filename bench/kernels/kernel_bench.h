#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/copy_ceiling.h"
#include "bench/common/product_ceiling.h"
#include "bench/kernels/kernel_case.h"
#include "bench/kernels/kernel_report.h"
#include "comm/world.h"
#include "runtime/device/cpu_topology.h"

namespace zs::bench {

/// The command line of bench_kernels.
struct KernelOptions {
  std::string device = "cpu";  ///< or cuda
  std::string filter;          ///< part of KernelCase::text(); empty: all
  std::string dtype;           ///< f32 or bf16; empty: both
  std::vector<int> threads;    ///< of a CPU; empty: 1 and this process's share
  double min_time_s = 0.1;     ///< of each kernel, shape and number of threads
  bool cudnn = false;          ///< attention on a GPU by cuDNN where it can
};

/// The cases that the options select, in their order. Error(usage) where that is none.
std::vector<KernelCase> selected_cases(const KernelOptions& options, const CaseSizes& sizes);
std::vector<KernelCase> selected_cases(const KernelOptions& options);

/// Operands of a case that other calls push out of the caches before they are used again: so many sets, which together
/// are several times the last-level cache. Calls take turns.
struct ColdCalls {
  ColdCalls(Device& device, const KernelCase& kernel_case, std::int64_t cache_bytes);

  Arrays arrays;
  std::vector<Work> calls;
};
/// Samples taken of each case, however short the time.
inline constexpr std::size_t kFewestSamples = 5;
/// The longest wait for a device at work on one case.
inline constexpr double kKernelTimeoutS = 600;

/// Measures kernels one after the other, and the ceilings again after each of them, so that both see the same machine.
/// One host thread uses it.
class KernelBench {
 public:
  explicit KernelBench(const KernelOptions& options);
  KernelReport run();

 private:
  void measure_all(int threads, KernelReport& report);
  KernelReport::Row measure(Device& device, const KernelCase& kernel_case) const;
  /// Of the case's kind: again, or for the first time.
  void measure_ceiling(const DeviceOptions& options, const KernelCase& kernel_case);

  KernelOptions options_;
  std::vector<KernelCase> cases_;
  CpuShare share_;
  std::int64_t cache_bytes_;
  std::unique_ptr<World> world_;
  // Of the number of threads that is being measured.
  std::map<DType, ProductCeiling> products_;
  std::unique_ptr<CopyCeiling> copies_;
};

}  // namespace zs::bench
