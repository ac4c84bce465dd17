// How the server's process keeps memory that is freed.
//
// For each request, Triton allocates what the client sent and what it is to get, and frees both soon after. By default,
// glibc returns large pieces to the system at once and faults every page in anew, which costs more than to copy a
// tensor.
#pragma once

namespace pytriton {

// Has freed memory kept for the next request, unless the environment says how (MALLOC_*_, GLIBC_TUNABLES).
void RetainFreedMemory();

// Returns what is kept. Once memory is wanted again, it costs the faults again.
void ReturnFreedMemory();

}  // namespace pytriton
