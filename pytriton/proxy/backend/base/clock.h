// The clock of all times that the backend measures and reports: CLOCK_MONOTONIC.
#pragma once

#include <time.h>

#include <cstdint>

namespace pytriton {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kSecondNs = 1'000'000'000;

inline uint64_t MonotonicNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * uint64_t{kSecondNs} + now.tv_nsec;
}

}  // namespace pytriton
