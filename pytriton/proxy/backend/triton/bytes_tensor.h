// BYTES tensors in Triton's layout: each element after its length.
#pragma once

#include <cstdint>
#include <cstring>

namespace pytriton {

constexpr int64_t kLengthSize = 4;  // of an element's length, a uint32

// Iterates over the elements. Returns whether the tensor is well formed.
template <typename Body>
bool ForEachElement(const char* data, int64_t size, int64_t count, Body body) {
  int64_t position = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    if (size - position < kLengthSize) return false;
    std::memcpy(&length, data + position, kLengthSize);
    position += kLengthSize;
    if (size - position < length) return false;
    body(data + position, length);
    position += length;
  }
  return position == size;
}

}  // namespace pytriton
