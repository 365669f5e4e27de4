#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/kernels/kernel_case.h"

namespace zs::bench {

/// What bench_kernels found out; docs/benchmarks.md says what each field means.
struct KernelReport {
  /// What was reached by one number of threads; 0 where no kernel asked for it.
  struct Ceilings {
    double copy_gb_per_s = 0, memcpy_gb_per_s = 0;
    std::map<DType, double> product_gflops = {};
  };
  struct Row {
    std::string kernel, shape;
    DType dtype;
    Bound bound;
    int threads;
    double bytes, flops;  ///< of a call
    std::int64_t calls;
    double ms_min, ms_median;  ///< of a call

    double gb_per_s() const { return bytes / (ms_min * 1e6); }
    double gflops() const { return flops / (ms_min * 1e6); }
  };

  std::string isa;                        ///< of the kernels: an instruction set, or "sm_90"
  std::string gpu = {};                   ///< its name; empty: the CPU
  std::int64_t cache_bytes = 0;           ///< of the last level; of a GPU its L2
  std::map<int, Ceilings> ceilings = {};  ///< by number of threads
  std::vector<Row> rows = {};

  /// The rate of the fastest call as a percentage of the ceiling of its kind, dtype and number of threads; 0 where
  /// there is none.
  double percent(const Row& row) const;
};

/// `ms`: of a call, by each sample.
KernelReport::Row row_of(const KernelCase& kernel_case, int threads, std::int64_t calls, const std::vector<double>& ms);

std::string to_json(const KernelReport& report);  ///< one line, without its end
std::string to_text(const KernelReport& report);

}  // namespace zs::bench
