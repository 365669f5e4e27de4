#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace zs::bench {

/// This process's proportional set size: resident bytes, those shared with other processes divided by their number, so
/// that the sum over the ranks of a host counts every page once. Nothing where the kernel does not tell.
inline std::optional<std::int64_t> pss_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kib = 0;
    if (words >> key >> kib && key == "Pss:") return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace zs::bench
