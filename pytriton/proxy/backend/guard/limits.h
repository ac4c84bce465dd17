// Limits on what clients can make the server do.
#pragma once

#include <cstdint>

namespace pytriton::guard {

// The largest size of an input, from the environment variable PYTRITON_MAX_INPUT_BYTES; by default 2 GiB, as in gRPC.
int64_t MaxInputBytes();

// Exits the process when its own memory exceeds the environment variable PYTRITON_MEMORY_LIMIT, in bytes. Without it,
// does nothing.
void WatchMemory();

}  // namespace pytriton::guard
