#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/copy_ceiling.h"
#include "bench/kernel_case.h"
#include "bench/kernel_report.h"
#include "bench/product_ceiling.h"
#include "comm/world.h"
#include "runtime/device/cpu_topology.h"

namespace zs::bench {

/// The command line of bench_kernels.
struct KernelOptions {
  std::string filter;        ///< part of KernelCase::text(); empty: all
  std::string dtype;         ///< f32 or bf16; empty: both
  std::vector<int> threads;  ///< empty: 1 and this process's share
  double min_time_s = 0.1;   ///< of each kernel, shape and number of threads
};

/// The cases that the options select, in their order.
std::vector<KernelCase> selected_cases(const KernelOptions& options);

/// Measures kernels one after the other, and the ceilings again after each of them, so that both see the same machine. One host thread
/// uses it.
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
