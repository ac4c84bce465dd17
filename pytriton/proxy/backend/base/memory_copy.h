// Copies of large blocks of memory, in which a second thread takes part.
//
// A copy in one thread leaves half of the memory's bandwidth unused, or more: two threads take 0.6 times as long.
#pragma once

#include <cstdint>

namespace pytriton {

// Copies `size` bytes, like std::memcpy. The second thread takes part in one copy at a time, if it gets a processor.
void CopyMemory(char* target, const char* source, int64_t size);

}  // namespace pytriton
