#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// The control groups of this process that may limit one resource: its own and their ancestors, as folders.
struct CgroupFolders {
  std::vector<std::string> v1, v2;
};
/// `controller`: "memory", "cpu". `root` stands before /proc and /sys; for tests. Inside a container the path in /proc
/// may be the host's and not exist here; the mount's root, which is listed too, then is the group.
CgroupFolders cgroup_folders(const std::string& root, std::string_view controller);

/// CPUs that this process may use on average, where a control group has a quota (cpu.max, cpu.cfs_quota_us): the least
/// of all groups.
std::optional<double> cpu_quota(const std::string& root = {});

}  // namespace zs
