#include "bench/common/cache_size.h"

#include <fmt/format.h>

#include <fstream>
#include <map>

namespace zs::bench {
namespace {

constexpr std::int64_t kUnknown = std::int64_t{64} << 20;

/// The first word of a file; empty when there is none.
std::string word_of(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

/// "32768K" in bytes, 0 for anything else.
std::int64_t bytes_in(const std::string& size) {
  if (size.size() < 2 || size.find_first_not_of("0123456789") != size.size() - 1) return 0;
  const std::int64_t unit = size.back() == 'K' ? 1 << 10 : size.back() == 'M' ? 1 << 20 : 0;
  return std::stoll(size) * unit;
}

}  // namespace

std::int64_t last_level_cache_bytes(const std::vector<int>& cpus, const std::string& root) {
  std::map<std::string, std::int64_t> caches;  // by the CPUs that share it
  for (const int cpu : cpus) {
    std::string shared_by;
    std::int64_t highest = 0, bytes = 0;
    for (int i = 0;; ++i) {
      const std::string folder = fmt::format("{}/sys/devices/system/cpu/cpu{}/cache/index{}", root, cpu, i);
      const std::string level = word_of(folder + "/level");
      if (level.empty()) break;
      if (level.size() != 1 || level[0] - '0' <= highest || word_of(folder + "/type") == "Instruction") continue;
      highest = level[0] - '0';
      bytes = bytes_in(word_of(folder + "/size"));
      shared_by = word_of(folder + "/shared_cpu_list");
    }
    if (bytes > 0) caches[shared_by] = bytes;
  }
  std::int64_t sum = 0;
  for (const auto& [shared_by, bytes] : caches) sum += bytes;
  return sum > 0 ? sum : kUnknown;
}

}  // namespace zs::bench
