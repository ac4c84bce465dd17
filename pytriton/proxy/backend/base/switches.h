// The environment variables that disable optimizations.
#pragma once

#include <cstdlib>
#include <string_view>

namespace pytriton {

inline bool IsSwitchedOff(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "0";
}

}  // namespace pytriton
