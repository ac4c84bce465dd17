// A hash for tables whose keys are addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pytriton::guard {

// Fibonacci hashing: allocated addresses differ in some of their middle bits.
inline size_t AddressHash(const void* address, int bits) {
  return (static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) * 0x9E3779B97F4A7C15) >> (64 - bits);
}

}  // namespace pytriton::guard
