// Describes why a system call failed.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace pytriton {

// Describes what could not be done, and why, according to `errno`.
inline std::string SystemError(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace pytriton
