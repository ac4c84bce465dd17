// The reason for which a system call failed, in words.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace pytriton {

// Says what could not be done, and why, by `errno`.
inline std::string SystemError(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace pytriton
