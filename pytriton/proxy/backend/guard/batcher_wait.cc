// Has dynamic batchers look at their queues soon after a request, not half a second later.
//
// Workaround for Triton (lost-wake-ups): where a model has a queue policy or priorities, a request that arrives just
// before the instance is idle again wakes nobody, and waits until the batcher looks at its queue by itself, up to 500
// ms later. So such a wait ends early, which the caller of a condition variable has to expect: after 250 us at first,
// and then after twice as long each time that nobody has woken the batcher.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/clock.h"
#include "guard/interpose.h"
#include "triton/api.h"

namespace {

constexpr int64_t kFirstNs = 250'000;
constexpr int64_t kBatchersNs = 500'000'000;  // how long a batcher without requests waits
constexpr int64_t kSecond = 1'000'000'000;

std::atomic<bool> is_needed{false};
thread_local int64_t next_ns = kFirstNs;

}  // namespace

void PYTRITON_ExpectLostWakeUps() { is_needed.store(true, std::memory_order_relaxed); }

extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                      const timespec* end) {
  const auto wait = PYTRITON_NEXT(pthread_cond_clockwait);
  if (!is_needed.load(std::memory_order_relaxed) || clock != CLOCK_MONOTONIC || PYTRITON_CALLED_BY_PROGRAM()) {
    return wait(condition, mutex, clock, end);
  }
  const int64_t end_ns = end->tv_sec * kSecond + end->tv_nsec;
  const auto now_ns = static_cast<int64_t>(pytriton::MonotonicNs());
  const int64_t left_ns = end_ns - now_ns;
  if (left_ns > kBatchersNs || left_ns < kBatchersNs * 9 / 10) return wait(condition, mutex, clock, end);
  const int64_t early_ns = std::min(now_ns + next_ns, end_ns);
  const timespec early = {early_ns / kSecond, early_ns % kSecond};
  const int status = wait(condition, mutex, clock, &early);
  next_ns = status == ETIMEDOUT ? std::min(2 * next_ns, kBatchersNs) : kFirstNs;
  return status == ETIMEDOUT && early_ns < end_ns ? 0 : status;
}
