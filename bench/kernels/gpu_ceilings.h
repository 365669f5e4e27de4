#pragma once

#include <array>
#include <memory>
#include <vector>

#include "bench/common/arrays.h"
#include "bench/common/ranks.h"
#include "bench/kernels/gpu_calls.h"

namespace zs::bench {

/// How long and on how much the ceilings of a GPU are measured. Smaller only in tests.
struct GpuCeilingSizes {
  double sample_ms = 20;  ///< of one sample, at least: calls enough that launching and waiting do not count
  std::int64_t copy_bytes = std::int64_t{512} << 20;  ///< of an array that is copied
  std::int64_t product_size = 8192;                   ///< rows and columns of the matrices that are multiplied
};

/// What memory-bound kernels on a GPU are compared with: the best rate, bytes read plus bytes written, at which the
/// GPUs of all ranks together have copied an array each in this process: by the driver's copy, and by a kernel
/// (copy_rows). Two arrays, while it lives; `device` and `ranks`, which is over a CPU device, outlive it. One host
/// thread.
class GpuCopyCeiling {
 public:
  /// Collective, as `measure`.
  GpuCopyCeiling(Device& device, Ranks& ranks, const GpuCeilingSizes& sizes);

  /// Takes a sample more of each way, in which the ranks begin together. Blocks the host.
  void measure();
  double gb_per_s() const { return *std::max_element(best_.begin(), best_.end()); }
  double driver_gb_per_s() const { return best_[0]; }

 private:
  Arrays arrays_;
  Ranks& ranks_;
  double bytes_, sample_ms_;
  std::vector<GpuCalls> ways_;
  std::array<double, 2> best_{};
};

/// What products on a GPU are compared with: the best rate at which the GPUs of all ranks together have multiplied
/// large square matrices of `dtype` in this process, by cuBLASLt through the kernel table, the second one plain and
/// transposed. Three matrices while it lives; `device` and `ranks`, which is over a CPU device, outlive it. One host
/// thread.
class GpuProductCeiling {
 public:
  /// Collective, as `measure`.
  GpuProductCeiling(Device& device, Ranks& ranks, DType dtype, const GpuCeilingSizes& sizes);

  /// Takes a sample more of each way, in which the ranks begin together, and returns the best rate so far in GFLOP/s.
  /// Blocks the host.
  double measure();

 private:
  Arrays arrays_;
  Ranks& ranks_;
  double flops_, sample_ms_;
  std::vector<GpuCalls> ways_;
  double best_ = 0;
};

}  // namespace zs::bench
