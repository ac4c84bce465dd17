// Spins until a word of shared memory changes, or a file descriptor is readable. Loaded by Python, which releases its
// interpreter lock meanwhile: see `transport/spin_library.py`.

#include <poll.h>
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

// Polls `has_come` until it returns true, or until `end_ns`, on the monotonic clock: then it returns 0. Returns 1 once
// other threads have kept the processor for long.
template <typename HasCome>
int Spin(const HasCome& has_come, int64_t end_ns) {
  while (true) {
    if (has_come()) return 0;
    const int64_t now = MonotonicNs();
    if (now >= end_ns) return 0;
    sched_yield();  // to any thread that is ready to run
    if (MonotonicNs() - now > kLongYieldNs) return 1;
  }
}

}  // namespace

extern "C" {

// Spins until `*word` is no longer `seen`.
__attribute__((visibility("default"))) int PytritonSpinAtWord(const std::atomic<uint32_t>* word, uint32_t seen,
                                                              int64_t end_ns) {
  const auto has_changed = [&] {
    for (int i = 0; i < kPausesPerYield; ++i) {
      if (word->load(std::memory_order_acquire) != seen) return true;
      Pause();
    }
    return false;
  };
  return Spin(has_changed, end_ns);
}

// Spins until `fd` is readable.
__attribute__((visibility("default"))) int PytritonSpinAtDescriptor(int fd, int64_t end_ns) {
  const auto is_readable = [&] {
    pollfd events = {fd, POLLIN, 0};
    return poll(&events, 1, 0) != 0;
  };
  return Spin(is_readable, end_ns);
}
}
