#include "runtime/device/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace zs {
namespace {

/// `mount` and everything between it and the group.
void add_folders(std::vector<std::string>& folders, const std::string& mount, std::string group) {
  for (;;) {
    while (group.ends_with('/')) group.pop_back();
    folders.push_back(mount + group);
    if (group.empty()) return;
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

void lower(std::optional<double>& limit, double quota_us, double period_us) {
  if (quota_us <= 0 || period_us <= 0) return;
  limit = std::min(limit.value_or(quota_us / period_us), quota_us / period_us);
}

}  // namespace

CgroupFolders cgroup_folders(const std::string& root, std::string_view controller) {
  CgroupFolders folders;
  const std::string mount = root + "/sys/fs/cgroup";
  // Lines are ID:CONTROLLERS:PATH; version 2 has ID 0 and no controllers.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) add_folders(folders.v2, mount, group);
    if (fmt::format(",{},", controllers).find(fmt::format(",{},", controller)) == std::string::npos) continue;
    add_folders(folders.v1, fmt::format("{}/{}", mount, controller), group);
    if (controllers != controller)
      add_folders(folders.v1, fmt::format("{}/{}", mount, controllers), group);  // cpu,cpuacct
  }
  return folders;
}

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> limit;
  const CgroupFolders folders = cgroup_folders(root, "cpu");
  for (const std::string& folder : folders.v2) {
    double quota_us = 0, period_us = 0;
    if (std::ifstream(folder + "/cpu.max") >> quota_us >> period_us)
      lower(limit, quota_us, period_us);  // "max 100000" is no number
  }
  for (const std::string& folder : folders.v1) {
    double quota_us = 0, period_us = 0;
    if (!(std::ifstream(folder + "/cpu.cfs_quota_us") >> quota_us)) continue;
    if (std::ifstream(folder + "/cpu.cfs_period_us") >> period_us) lower(limit, quota_us, period_us);
  }
  return limit;
}

}  // namespace zs
