#pragma once

#include <string>
#include <vector>

#include "runtime/device/cuda_gpu.h"
#include "runtime/device/device.h"

namespace zs::bench {

/// Of a CUDA device; and what its kernels are compiled for, "sm_90".
const CudaGpu& gpu_of(const Device& device);
std::string isa_of(const CudaGpu& gpu);

/// Calls on a GPU's compute stream, timed by the host: from the first launch to when the host knows that the last call
/// has ended. What this and the host's look at the stream take, tens of microseconds, is shared by all calls of a row.
/// Calls are launched one after the other without a wait: one that the GPU does faster than the host launches is timed
/// as a launch. One host thread uses it.
class GpuCalls {
 public:
  /// They go round. `device` outlives this.
  GpuCalls(Device& device, std::string name, std::vector<Work> calls)
      : device_(device), name_(std::move(name)), calls_(std::move(calls)) {}

  /// Runs so many; milliseconds in all. Blocks the host.
  double run(std::int64_t count);
  /// After a first round, in which libraries make what they keep: how many calls take `ms`, as far as a second round
  /// shows, and no fewer than one.
  std::int64_t count_in(double ms);

 private:
  Device& device_;
  std::string name_;
  std::vector<Work> calls_;
  std::size_t next_ = 0;
};

}  // namespace zs::bench
