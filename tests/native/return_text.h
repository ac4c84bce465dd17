// How functions of the library return text to Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

// Copies as much of the text as there is room for. Returns the size of the whole text.
inline int64_t ReturnText(const std::string& text, char* target, int64_t capacity) {
  const auto size = static_cast<int64_t>(text.size());
  std::memcpy(target, text.data(), std::min(size, capacity));
  return size;
}
