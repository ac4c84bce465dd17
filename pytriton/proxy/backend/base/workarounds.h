// The bugs of Triton that the server has: `pytriton/server/workarounds.py` lists them.
#pragma once

#include <string_view>

namespace pytriton {

// Returns whether the server needs a workaround. The environment variable PYTRITON_WORKAROUNDS has the names of those
// that it needs, separated by commas; without it, it needs all.
bool NeedsWorkaround(std::string_view name);

}  // namespace pytriton
