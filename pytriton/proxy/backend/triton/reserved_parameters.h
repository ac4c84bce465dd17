// Request parameters that have a meaning for this backend.
#pragma once

namespace pytriton {

// Carries the call chain of a request that a worker sends. Callables never see it, and clients cannot set it.
constexpr const char* kCallersParameter = "pytriton_callers";

}  // namespace pytriton
