// Makes the server's process retain memory that is freed.
//
// Triton allocates buffers for each request and its response, and frees them soon after. By default, glibc returns
// large buffers to the system at once, and every page is faulted in again, which costs more than copying a tensor.
#pragma once

namespace pytriton {

// Whether the environment configures glibc's allocator (MALLOC_*_, GLIBC_TUNABLES), which is then not changed.
bool IsHeapConfigured();

// Makes glibc retain freed memory, unless the environment configures it.
void RetainFreedMemory();

// Returns the retained memory to the system.
void ReturnFreedMemory();

}  // namespace pytriton
