// BYTES tensors in Triton's layout: each element after its length.
#pragma once

#include <cstdint>
#include <cstring>

namespace pytriton {

constexpr int64_t kLengthSize = 4;  // of an element's length, a uint32

// Iterates over the elements. Returns whether the tensor is well formed. The elements never have more bytes than the
// tensor without `count` lengths, even if a client changes shared memory meanwhile.
template <typename Body>
bool ForEachElement(const char* data, int64_t size, int64_t count, Body body) {
  int64_t room = size - count * kLengthSize;
  if (room < 0) return false;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    std::memcpy(&length, data, kLengthSize);
    data += kLengthSize;
    if (room < length) return false;
    body(data, length);
    data += length;
    room -= length;
  }
  return room == 0;
}

}  // namespace pytriton
