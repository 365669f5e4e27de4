#include "runtime/device/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "runtime/base/check.h"

namespace zs {
namespace {

struct Hierarchy {
  const char* mount;
  const char* file;
  const char* source;
};
constexpr Hierarchy kV1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "cgroup memory.limit_in_bytes"};
constexpr Hierarchy kV2{"/sys/fs/cgroup", "memory.max", "cgroup memory.max"};

/// Nothing when the file is missing or says "max".
std::optional<std::int64_t> read_bytes(const std::string& path) {
  std::ifstream file(path);
  std::int64_t bytes = 0;
  if (!(file >> bytes)) return std::nullopt;
  return bytes;
}

void lower(MemoryLimit& limit, std::optional<std::int64_t> bytes, const char* source) {
  if (bytes && *bytes > 0 && *bytes < limit.bytes) limit = {*bytes, source};
}

/// The group and its ancestors. Inside a container the path may be the host's and not exist here; the mount's root then is the group.
void lower_by_group(MemoryLimit& limit, const std::string& root, const Hierarchy& hierarchy, std::string group) {
  for (;;) {
    while (group.ends_with('/')) group.pop_back();
    lower(limit, read_bytes(root + hierarchy.mount + group + "/" + hierarchy.file), hierarchy.source);
    if (group.empty()) return;
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

MemoryLimit memory_limit_bytes(const std::string& root) {
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  ZS_CHECK(pages > 0 && page_bytes > 0, "the system says {} pages of {} bytes", pages, page_bytes);
  MemoryLimit limit{pages * page_bytes, "physical memory"};

  // Lines are ID:CONTROLLERS:PATH; version 2 has ID 0 and no controllers.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") lower_by_group(limit, root, kV2, group);
    if (controllers.find(",memory,") != std::string::npos) lower_by_group(limit, root, kV1, group);
  }

  rlimit address_space{};
  ZS_CHECK(getrlimit(RLIMIT_AS, &address_space) == 0, "getrlimit(RLIMIT_AS)");
  if (address_space.rlim_cur < static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max()))
    lower(limit, static_cast<std::int64_t>(address_space.rlim_cur), "ulimit -v");
  return limit;
}

}  // namespace zs
