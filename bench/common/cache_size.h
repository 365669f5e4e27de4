#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs::bench {

/// Bytes of last-level cache that these CPUs have together: each cache that several of them share counts once. 64 MiB
/// where the system does not tell. `root` is put before /sys.
std::int64_t last_level_cache_bytes(const std::vector<int>& cpus, const std::string& root = {});

}  // namespace zs::bench
