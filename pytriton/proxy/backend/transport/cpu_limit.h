// The CPU limit of this process's control group, such as that of a container. Counterpart of `transport/cpu_limit.py`.
#pragma once

#include <optional>
#include <string>

namespace pytriton {

// Returns how many processors' time the control groups of this process may take; nothing if no limit is visible. Once
// their threads have used up a period's share, usually of 100 ms, the kernel throttles them until the next period.
// `root` is the folder in which proc and sys are.
std::optional<double> CpuLimit(const std::string& root = "/");

}  // namespace pytriton
