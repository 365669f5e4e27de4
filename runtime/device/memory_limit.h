#pragma once

#include <cstdint>
#include <string>

namespace zs {

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string source;  ///< "physical memory", "cgroup memory.max", "cgroup memory.limit_in_bytes" or "ulimit -v"
};

/// The smallest of the limits that bind this process: the memory cgroups it is in (v1 and v2, every ancestor), ulimit -v, and
/// physical memory. Ranks of one host share the physical and (usually) the cgroup limit. `root` is put before /proc and /sys.
MemoryLimit memory_limit_bytes(const std::string& root = {});

}  // namespace zs
