// Spins until a word of shared memory changes. Loaded by Python, which releases its interpreter lock meanwhile: see
// `transport/doorbell.py`.

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace {

constexpr int kPausesPerYield = 64;
constexpr int64_t kLongYieldNs = 1'000'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// Returns 0 once `*word` is no longer `seen`, or at `end_ns`, on the monotonic clock; returns 1 once other threads have
// kept the processor for long.
extern "C" __attribute__((visibility("default"))) int PytritonSpin(const std::atomic<uint32_t>* word, uint32_t seen,
                                                                   int64_t end_ns) {
  while (true) {
    for (int i = 0; i < kPausesPerYield; ++i) {
      if (word->load(std::memory_order_acquire) != seen) return 0;
      Pause();
    }
    const int64_t now = MonotonicNs();
    if (now >= end_ns) return 0;
    sched_yield();  // to any thread that is ready to run
    if (MonotonicNs() - now > kLongYieldNs) return 1;
  }
}
