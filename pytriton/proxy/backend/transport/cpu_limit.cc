#include "transport/cpu_limit.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

namespace pytriton {

namespace {

namespace fs = std::filesystem;

// Returns the limit of one control group, of version 1 or 2.
std::optional<double> LimitOf(const fs::path& group) {
  int64_t quota = 0;
  int64_t period = 0;
  std::ifstream cpu_max(group / "cpu.max");
  if (!(cpu_max >> quota >> period)) {  // there is none, or it is "max"
    std::ifstream quota_file(group / "cpu.cfs_quota_us");
    std::ifstream period_file(group / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

bool HasCpuController(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

std::optional<double> CpuLimit(const std::string& root) {
  std::optional<double> limit;
  // In a container, the group itself is often not visible, or only as the root.
  const auto add = [&](const fs::path& mount, fs::path group) {
    if (std::find(group.begin(), group.end(), "..") != group.end()) group.clear();
    while (true) {
      const std::optional<double> found = LimitOf(mount / group);
      if (found.has_value()) limit = std::min(*found, limit.value_or(*found));
      if (group.empty()) return;
      group = group.parent_path();
    }
  };
  const fs::path mounts = fs::path(root) / "sys/fs/cgroup";
  std::ifstream groups(fs::path(root) / "proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (controllers.empty()) {  // version 2
      add(mounts, group);
    } else if (HasCpuController(controllers)) {
      add(mounts / controllers, group);
      add(mounts / "cpu", group);
    }
  }
  return limit;
}

}  // namespace pytriton
