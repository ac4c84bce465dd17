#include "base/workarounds.h"

#include <cstdlib>
#include <string>

namespace pytriton {

bool NeedsWorkaround(std::string_view name) {
  const char* needed = std::getenv("PYTRITON_WORKAROUNDS");
  if (needed == nullptr) return true;
  const std::string list = "," + std::string(needed) + ",";
  return list.find("," + std::string(name) + ",") != std::string::npos;
}

}  // namespace pytriton
