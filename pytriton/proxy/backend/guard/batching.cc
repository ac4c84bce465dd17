// Decides when dynamic batchers look at their queues.
//
// Triton wakes a model's batcher for each request, and at the end of each batch. While the model's instances are busy,
// this makes small batches early, and takes the processor away from who computes. So what would wake a batcher then is
// put off until an instance has the results of its batch: while it sends the responses, the batcher makes one batch of
// all that has come.
//
// Workaround for Triton (lost-wake-ups): where a model has a queue policy or priorities, the batcher hands a batch out
// only while an instance waits for one. Requests and ends of batches wake it, but an instance that begins to wait does
// not: a request that arrives just before that waits until the batcher looks at its queue by itself, up to 500 ms
// later. So an instance that begins to wait wakes its batcher. As that may come a moment before the batcher waits, such
// a wait also ends early, which the caller of a condition variable has to expect: after 250 us at first, and then after
// twice as long each time that nobody has woken the batcher.
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/switches.h"
#include "guard/batcher.h"
#include "guard/interpose.h"
#include "triton/api.h"

namespace pytriton::guard {

namespace {

constexpr int64_t kBatchersNs = 500'000'000;  // how long a batcher waits if nobody wakes it
constexpr int64_t kSecond = 1'000'000'000;

std::atomic<bool> expects_lost_wake_ups{false};

// The thread of a batcher.
class BatcherThread {
 public:
  explicit BatcherThread(pthread_cond_t* condition) : batcher_(Batcher::Begin(condition)) {}
  ~BatcherThread() {
    if (batcher_ != nullptr) batcher_->End();
  }
  BatcherThread(const BatcherThread&) = delete;
  BatcherThread& operator=(const BatcherThread&) = delete;

  // The batcher whose condition this is; null if it is not known.
  Batcher* Of(const pthread_cond_t* condition) const {
    return batcher_ != nullptr && Batcher::Find(condition) == batcher_ ? batcher_ : nullptr;
  }

 private:
  Batcher* const batcher_;
};

// The thread of an instance, and its batcher: the one that it notifies when a batch has ended.
class InstanceThread {
 public:
  InstanceThread() = default;
  ~InstanceThread() { BeginWait(); }
  InstanceThread(const InstanceThread&) = delete;
  InstanceThread& operator=(const InstanceThread&) = delete;

  void BeginBatch(int instance_count) {
    is_in_batch_ = true;
    if (batcher_ == nullptr || is_holding_ || instance_count == 0) return;
    is_holding_ = batcher_->Hold(generation_, instance_count);
  }

  void HaveResults() {
    if (batcher_ != nullptr && batcher_->TakePutOff()) batcher_->Wake(generation_);
  }

  void EndBatch() { is_in_batch_ = false; }

  void Notify(Batcher* batcher) {
    if (is_in_batch_) return;  // with a request: the next step of an ensemble, or the same one again
    if (batcher == batcher_ && batcher->generation() == generation_) return;
    BeginWait();
    batcher_ = batcher;
    generation_ = batcher->generation();
  }

  void BeginWait() {
    if (batcher_ == nullptr || is_in_batch_) return;
    if (is_holding_) batcher_->Release(generation_);
    is_holding_ = false;
    const bool is_put_off = batcher_->TakePutOff();
    if (is_put_off || batcher_->awaits_instances() || expects_lost_wake_ups.load(std::memory_order_relaxed)) {
      batcher_->Wake(generation_);
    }
  }

 private:
  bool is_in_batch_ = false;
  bool is_holding_ = false;
  Batcher* batcher_ = nullptr;
  uint32_t generation_ = 0;
};

thread_local bool is_instance_thread = false;
thread_local InstanceThread instance_thread;

}  // namespace

}  // namespace pytriton::guard

using pytriton::guard::Batcher;
using pytriton::guard::instance_thread;
using pytriton::guard::is_instance_thread;

void PYTRITON_ExpectLostWakeUps() { pytriton::guard::expects_lost_wake_ups.store(true, std::memory_order_relaxed); }

void PYTRITON_BatchBegins(int instance_count) {
  static const bool is_on = !pytriton::IsSwitchedOff("PYTRITON_BATCHING");
  is_instance_thread = true;
  instance_thread.BeginBatch(is_on ? instance_count : 0);
}

void PYTRITON_BatchHasResults() { instance_thread.HaveResults(); }

void PYTRITON_BatchEnds() { instance_thread.EndBatch(); }

extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                      const timespec* end) {
  const auto wait = PYTRITON_NEXT(pthread_cond_clockwait);
  if (clock != CLOCK_MONOTONIC || PYTRITON_CALLED_BY_PROGRAM()) return wait(condition, mutex, clock, end);
  const int64_t end_ns = end->tv_sec * pytriton::guard::kSecond + end->tv_nsec;
  const auto now_ns = static_cast<int64_t>(pytriton::MonotonicNs());
  const int64_t left_ns = end_ns - now_ns;
  if (left_ns > pytriton::guard::kBatchersNs || left_ns < pytriton::guard::kBatchersNs * 9 / 10) {
    return wait(condition, mutex, clock, end);
  }
  thread_local const pytriton::guard::BatcherThread thread(condition);
  Batcher* const batcher = thread.Of(condition);
  if (batcher == nullptr) return wait(condition, mutex, clock, end);
  const bool is_early = pytriton::guard::expects_lost_wake_ups.load(std::memory_order_relaxed);
  return batcher->Wait(condition, mutex, now_ns, end_ns, is_early);
}

// The names are those of `std::condition_variable::notify_one` and `wait`, as Triton's core calls them.

void NotifyOne(std::condition_variable* condition) __asm__("_ZNSt18condition_variable10notify_oneEv");
void NotifyOne(std::condition_variable* condition) {
  Batcher* const batcher = Batcher::Find(condition->native_handle());
  if (batcher != nullptr) {
    if (is_instance_thread) instance_thread.Notify(batcher);
    if (batcher->PutOff()) return;
  }
  pthread_cond_signal(condition->native_handle());
}

void Wait(std::condition_variable* condition,
          std::unique_lock<std::mutex>& lock) __asm__("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void Wait(std::condition_variable* condition, std::unique_lock<std::mutex>& lock) {
  if (is_instance_thread) instance_thread.BeginWait();
  pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
