#include "guard/batcher.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

#include "guard/interpose.h"

namespace pytriton::guard {

namespace {

constexpr int kPlaceBits = 12;
constexpr int64_t kFirstNs = 250'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr uintptr_t kFramesSize = 4096;

std::array<Batcher, size_t{1} << kPlaceBits> batchers;

// Fibonacci hashing: allocated addresses differ in some of their middle bits.
Batcher& PlaceOf(const pthread_cond_t* condition) {
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(condition));
  return batchers[(address * 0x9E3779B97F4A7C15) >> (64 - kPlaceBits)];
}

// Whether a mutex is a variable of the functions that have called this one.
bool IsOnStack(const pthread_mutex_t* mutex) {
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return reinterpret_cast<uintptr_t>(mutex) - here < kFramesSize;
}

}  // namespace

Batcher* Batcher::Find(const pthread_cond_t* condition) {
  Batcher& batcher = PlaceOf(condition);
  return batcher.condition_.load(std::memory_order_acquire) == condition ? &batcher : nullptr;
}

Batcher* Batcher::Begin(pthread_cond_t* condition) {
  Batcher& batcher = PlaceOf(condition);
  pthread_cond_t* none = nullptr;
  return batcher.condition_.compare_exchange_strong(none, condition) ? &batcher : nullptr;
}

void Batcher::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  generation_.fetch_add(1);
  held_.store(0);
  early_after_ns_ = 0;
  condition_.store(nullptr);
}

int Batcher::Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t now_ns, int64_t end_ns, bool is_early) {
  if (early_after_ns_ == 0) early_after_ns_ = kFirstNs;
  const int64_t early_ns = is_early ? std::min(now_ns + early_after_ns_, end_ns) : end_ns;
  const timespec end = {early_ns / kSecond, early_ns % kSecond};
  // While it waits for instances, it leaves its queue to others: the mutex is one for the purpose.
  awaits_.store(IsOnStack(mutex) ? Awaits::kInstances : Awaits::kRequests);
  int status = 0;
  if (!is_woken_.exchange(false)) {
    status = PYTRITON_NEXT(pthread_cond_clockwait)(condition, mutex, CLOCK_MONOTONIC, &end);
    is_woken_.store(false);
  }
  awaits_.store(Awaits::kNothing);
  early_after_ns_ = status == ETIMEDOUT ? std::min(2 * early_after_ns_, kSecond) : kFirstNs;
  return status == ETIMEDOUT && early_ns < end_ns ? 0 : status;
}

bool Batcher::Hold(uint32_t generation, int instance_count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() != generation) return false;
  instance_count_.store(instance_count);
  held_.fetch_add(1);
  return true;
}

void Batcher::Release(uint32_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() == generation) held_.fetch_sub(1);
}

bool Batcher::is_held() const { return held_.load() > 0 && held_.load() >= instance_count_.load(); }

bool Batcher::PutOff() {
  // A batcher that waits for anything else has a time of its own for it.
  if (awaits_.load() == Awaits::kNothing || !is_held()) return false;
  is_put_off_.store(true);
  return is_held();  // or the instance may have looked already
}

void Batcher::Wake(uint32_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() != generation) return;
  is_woken_.store(true);
  if (awaits_.load() != Awaits::kNothing) pthread_cond_signal(condition_.load());
}

}  // namespace pytriton::guard
