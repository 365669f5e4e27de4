#include "runtime/device/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "runtime/base/check.h"
#include "runtime/device/cgroup.h"

namespace zs {
namespace {

/// Number in a file; nothing when the file is missing or says "max".
std::optional<std::int64_t> read_bytes(const std::string& path) {
  std::ifstream file(path);
  std::int64_t bytes = 0;
  if (!(file >> bytes)) return std::nullopt;
  return bytes;
}

void lower(MemoryLimit& limit, std::optional<std::int64_t> bytes, const char* source) {
  if (bytes && *bytes > 0 && *bytes < limit.bytes) limit = {.bytes = *bytes, .source = source};
}

/// A line "VmSize:   1234 kB" of /proc/self/status; 0 where there is none.
std::int64_t status_bytes(const std::string& root, const std::string& key) {
  std::ifstream status(root + "/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Limit of a resource; nothing where it is not limited.
std::optional<std::int64_t> resource_limit(__rlimit_resource resource) {
  rlimit limit{};
  ZS_CHECK(getrlimit(resource, &limit) == 0, "getrlimit({})", static_cast<int>(resource));
  if (limit.rlim_cur >= static_cast<rlim_t>(kMost)) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

MemoryLimit physical_memory() {
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  ZS_CHECK(pages > 0 && page_bytes > 0, "the system says {} pages of {} bytes", pages, page_bytes);
  return {.bytes = pages * page_bytes, .source = "physical memory"};
}

/// Limit of the lowest group; its bytes are `most` when no group has less.
MemoryLimit lowest_group(const std::string& root, std::int64_t most) {
  MemoryLimit limit{.bytes = most, .source = {}};
  const CgroupFolders groups = cgroup_folders(root, "memory");
  for (const std::string& folder : groups.v1)
    lower(limit, read_bytes(folder + "/memory.limit_in_bytes"), "cgroup memory.limit_in_bytes");
  for (const std::string& folder : groups.v2) lower(limit, read_bytes(folder + "/memory.max"), "cgroup memory.max");
  return limit;
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  std::vector<MemoryLimit> limits{physical_memory()};
  const std::int64_t physical_bytes = limits.front().bytes;
  if (MemoryLimit group = lowest_group(root, physical_bytes); group.bytes < physical_bytes)
    limits.push_back(std::move(group));
  // glibc sets 64 MiB of addresses aside for each thread's allocations, of which only what is used counts as data.
  constexpr std::int64_t kArenaBytes = std::int64_t{64} << 20, kUsualStackBytes = std::int64_t{8} << 20;
  const std::int64_t stack_bytes = resource_limit(RLIMIT_STACK).value_or(kUsualStackBytes);
  const auto add = [&](__rlimit_resource resource, const char* source, const char* used, std::int64_t thread_bytes) {
    const auto bytes = resource_limit(resource);
    if (bytes) limits.push_back({*bytes, source, true, status_bytes(root, used), thread_bytes});
  };
  add(RLIMIT_AS, "ulimit -v", "VmSize", stack_bytes + kArenaBytes);
  add(RLIMIT_DATA, "ulimit -d", "VmData", stack_bytes);
  return limits;
}

const MemoryLimit& lowest(const std::vector<MemoryLimit>& limits) {
  return *std::min_element(limits.begin(), limits.end(),
                           [](const MemoryLimit& a, const MemoryLimit& b) { return a.bytes < b.bytes; });
}

}  // namespace zs
