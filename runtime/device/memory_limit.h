#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string source;  ///< "physical memory", "cgroup memory.max", "cgroup memory.limit_in_bytes", "ulimit -v", "ulimit
                       ///< -d" or "free memory of GPU 0 (NVIDIA H200)"
  bool is_per_process = false;  ///< else the processes of this host share it
  std::int64_t used_bytes = 0;  ///< for a limit per process: bytes that this process has used of it already
  /// For a limit per process: bytes that each thread that it starts will use, for its stack and the C library.
  std::int64_t thread_bytes = 0;
};

/// The limits that bind this process: physical memory, the lowest of the memory cgroups it is in (v1 and v2, every
/// ancestor) where that is lower, ulimit -v and ulimit -d where there are such. `root` is put before /proc and /sys.
std::vector<MemoryLimit> memory_limits(const std::string& root = {});

/// Limit of a GPU's memory that is free now: a limit of this process. Error(config) as Device::create has them.
MemoryLimit gpu_memory_limit(int gpu);

/// The smallest of them. There is one.
const MemoryLimit& lowest(const std::vector<MemoryLimit>& limits);
inline MemoryLimit memory_limit_bytes(const std::string& root = {}) { return lowest(memory_limits(root)); }

}  // namespace zs
