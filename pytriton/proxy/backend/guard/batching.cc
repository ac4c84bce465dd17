// Calls instances that build batches when Triton has no more requests for them, and decides when other instances and
// dynamic batchers look at their queues.
//
// Triton wakes an idle instance for each request. If the model has several and each batch is short, a request is served
// sooner, and with more others, by the instance that is about to end its batch. So that one can hold the queue: while
// it does, no other instance is woken.
//
// Triton wakes a model's batcher for each request, and at the end of each batch. While the model's instances are busy,
// that takes the processor away from the function, and gains nothing. So wake-ups of a batcher are postponed until an
// instance has the results of its batch: while it sends the responses, the batcher forms a batch of the requests that
// have arrived.
//
// Workaround for Triton (lost-wake-ups): if a model has a queue policy or priorities, the batcher hands out a batch
// only while an instance waits for one. Requests and ends of batches wake it, but an instance that begins to wait does
// not: a request that arrives just before that waits until the batcher checks its queue anyway, up to 500 ms later. So
// an instance that begins to wait wakes its batcher. As that may happen a moment before the batcher waits, such a wait
// also ends early (a spurious wake-up, which callers of a condition variable must expect): after 250 us at first, and
// then after twice as long each time that the batcher was not woken.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/switches.h"
#include "guard/batcher.h"
#include "guard/interpose.h"
#include "guard/request_queue.h"
#include "triton/api.h"

namespace pytriton::guard {

namespace {

constexpr int64_t kFirstNs = 250'000;
constexpr int64_t kBatchersNs = 500'000'000;  // how long a batcher waits if it is not woken
constexpr uintptr_t kFramesSize = 4096;

std::atomic<bool> expects_lost_wake_ups{false};

// Whether a mutex is a local variable of a calling function.
bool IsOnStack(const pthread_mutex_t* mutex) {
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return reinterpret_cast<uintptr_t>(mutex) - here < kFramesSize;
}

// The thread of a batcher.
class BatcherThread {
 public:
  explicit BatcherThread(pthread_cond_t* condition) : condition_(condition), batcher_(Batcher::Begin(condition)) {}
  ~BatcherThread() {
    if (batcher_ != nullptr) batcher_->End();
  }
  BatcherThread(const BatcherThread&) = delete;
  BatcherThread& operator=(const BatcherThread&) = delete;

  // Waits as `pthread_cond_clockwait` does.
  int Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t now_ns, const timespec* end) {
    const auto wait = PYTRITON_NEXT(pthread_cond_clockwait);
    const int64_t end_ns = end->tv_sec * kSecondNs + end->tv_nsec;
    // While it waits for instances, its queue is not locked: there is a separate mutex. Any other shorter wait is for
    // the end of a queue delay.
    const auto awaits = IsOnStack(mutex) ? Batcher::Awaits::kInstances : Batcher::Awaits::kRequests;
    const bool is_short = end_ns - now_ns < kBatchersNs * 9 / 10;
    if (condition != condition_ || (is_short && awaits != Batcher::Awaits::kInstances)) {
      return wait(condition, mutex, CLOCK_MONOTONIC, end);
    }
    if (batcher_ != nullptr && !batcher_->BeginWait(awaits)) return 0;
    int64_t early_ns = end_ns;
    if (expects_lost_wake_ups.load(std::memory_order_relaxed)) early_ns = std::min(end_ns, now_ns + early_after_ns_);
    const timespec early = {early_ns / kSecondNs, early_ns % kSecondNs};
    const int status = wait(condition, mutex, CLOCK_MONOTONIC, &early);
    if (batcher_ != nullptr) batcher_->EndWait();
    early_after_ns_ = status == ETIMEDOUT ? std::min(2 * early_after_ns_, kBatchersNs) : kFirstNs;
    return status == ETIMEDOUT && early_ns < end_ns ? 0 : status;
  }

 private:
  const pthread_cond_t* const condition_;
  Batcher* const batcher_;  // null if there are too many
  int64_t early_after_ns_ = kFirstNs;
};

// The thread of an instance, and its batcher: the one that it notifies at the end of a batch.
class InstanceThread {
 public:
  InstanceThread() = default;
  ~InstanceThread() { BeginWait(); }
  InstanceThread(const InstanceThread&) = delete;
  InstanceThread& operator=(const InstanceThread&) = delete;

  void BeginBatch(int instance_count) {
    is_in_batch_ = true;
    if (instance_count == 0) return Release();
    if (batcher_ == nullptr) return;
    batcher_->SetInstanceCount(instance_count);
    if (!is_holding_) is_holding_ = batcher_->Hold(generation_);
  }

  void HaveResults() {
    if (batcher_ != nullptr) batcher_->WakeIfPutOff(generation_);
  }

  void EndBatch() { is_in_batch_ = false; }

  void Notify(Batcher* batcher) {
    // During a batch, the notification is for a request: for the next step of an ensemble, or one to be executed again.
    if (is_in_batch_ || (batcher == batcher_ && batcher->generation() == generation_)) return;
    BeginWait();
    batcher_ = batcher;
    generation_ = batcher->generation();
  }

  void BeginWait() {
    if (batcher_ == nullptr || is_in_batch_) return;
    Release();
    if (batcher_->WakeIfPutOff(generation_)) return;
    if (batcher_->awaits_instances() || expects_lost_wake_ups.load(std::memory_order_relaxed)) {
      batcher_->Wake(generation_);
    }
  }

 private:
  void Release() {
    if (is_holding_) batcher_->Release(generation_);
    is_holding_ = false;
  }

  bool is_in_batch_ = false;
  bool is_holding_ = false;
  Batcher* batcher_ = nullptr;
  uint32_t generation_ = 0;
};

// The thread of an instance that builds its batches, and its model's queue.
class BuildingThread {
 public:
  BuildingThread() = default;
  ~BuildingThread() { Leave(); }
  BuildingThread(const BuildingThread&) = delete;
  BuildingThread& operator=(const BuildingThread&) = delete;

  // The queue is locked and empty, and the thread has still something to do before it waits there.
  void FindNone(pthread_cond_t* condition) {
    if (condition != condition_) {
      Leave();
      queue_ = RequestQueue::Join(condition);
      condition_ = condition;
    }
    if (queue_ != nullptr) queue_->HaveTakenAll();
  }

  // The thread waits.
  void BeginWait(const pthread_cond_t* condition) {
    if (condition == condition_ && queue_ != nullptr) queue_->HaveTakenAll();
    Release(false);
  }

  void Hold() {
    if (queue_ != nullptr && !std::exchange(is_holding_, true)) queue_->Hold();
  }

  void Release(bool has_more) {
    if (std::exchange(is_holding_, false)) return queue_->Release();
    if (has_more && queue_ != nullptr) queue_->Wake();
  }

 private:
  void Leave() {
    Release(false);
    if (queue_ != nullptr) queue_->Leave();
  }

  RequestQueue* queue_ = nullptr;  // null if there are too many
  const pthread_cond_t* condition_ = nullptr;
  bool is_holding_ = false;
};

// A call to make once the thread has nothing else to do.
struct IdleCall {
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
};

thread_local IdleCall idle_call;
std::atomic<bool> has_waited{false};  // whether any thread has called `std::condition_variable::wait` here
thread_local bool is_instance_thread = false;
thread_local InstanceThread instance_thread;
thread_local BuildingThread building_thread;
thread_local bool is_batcher_thread = false;

}  // namespace

}  // namespace pytriton::guard

using pytriton::guard::Batcher;
using pytriton::guard::RequestQueue;

void PYTRITON_ExpectLostWakeUps() { pytriton::guard::expects_lost_wake_ups.store(true, std::memory_order_relaxed); }

void PYTRITON_BatchBegins(int instance_count) {
  static const bool is_on = !pytriton::IsSwitchedOff("PYTRITON_BATCHING");
  pytriton::guard::is_instance_thread = true;
  // A batcher is held only if the guard will notice when the instance is idle.
  const bool may_hold = is_on && pytriton::guard::has_waited.load(std::memory_order_relaxed);
  pytriton::guard::instance_thread.BeginBatch(may_hold ? instance_count : 0);
}

bool PYTRITON_CallWhenIdle(void (*function)(void*), void* argument) {
  static const bool is_on = !pytriton::IsSwitchedOff("PYTRITON_BATCHING");
  // Otherwise the guard would not notice.
  if (!is_on || !pytriton::guard::has_waited.load(std::memory_order_relaxed)) return false;
  pytriton::guard::is_instance_thread = true;
  pytriton::guard::idle_call = {function, argument};
  return true;
}

void PYTRITON_HoldRequests() { pytriton::guard::building_thread.Hold(); }

void PYTRITON_ReleaseRequests(bool has_more) { pytriton::guard::building_thread.Release(has_more); }

void PYTRITON_BatchHasResults() { pytriton::guard::instance_thread.HaveResults(); }

void PYTRITON_BatchEnds() { pytriton::guard::instance_thread.EndBatch(); }

extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                      const timespec* end) {
  const auto wait = PYTRITON_NEXT(pthread_cond_clockwait);
  if (clock != CLOCK_MONOTONIC || PYTRITON_CALLED_BY_PROGRAM()) return wait(condition, mutex, clock, end);
  const auto now_ns = static_cast<int64_t>(pytriton::MonotonicNs());
  const int64_t left_ns = end->tv_sec * pytriton::kSecondNs + end->tv_nsec - now_ns;
  const bool is_batchers = left_ns <= pytriton::guard::kBatchersNs && left_ns >= pytriton::guard::kBatchersNs * 9 / 10;
  if (!is_batchers && !pytriton::guard::is_batcher_thread) return wait(condition, mutex, clock, end);
  pytriton::guard::is_batcher_thread = true;
  thread_local pytriton::guard::BatcherThread thread(condition);
  return thread.Wait(condition, mutex, now_ns, end);
}

// The names are those of `std::condition_variable::notify_one` and `wait`, as Triton's core calls them.

void NotifyOne(std::condition_variable* condition) __asm__("_ZNSt18condition_variable10notify_oneEv");
void NotifyOne(std::condition_variable* condition) {
  Batcher* const batcher = Batcher::Find(condition->native_handle());
  if (batcher != nullptr) {
    if (pytriton::guard::is_instance_thread) pytriton::guard::instance_thread.Notify(batcher);
    if (batcher->PutOff()) return;
  } else if (RequestQueue* const queue = RequestQueue::Find(condition->native_handle())) {
    if (queue->PutOff(condition->native_handle())) return;
  }
  pthread_cond_signal(condition->native_handle());
}

void Wait(std::condition_variable* condition,
          std::unique_lock<std::mutex>& lock) __asm__("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void Wait(std::condition_variable* condition, std::unique_lock<std::mutex>& lock) {
  if (!pytriton::guard::has_waited.load(std::memory_order_relaxed)) {
    pytriton::guard::has_waited.store(true, std::memory_order_relaxed);
  }
  if (pytriton::guard::is_instance_thread) {
    const auto call = std::exchange(pytriton::guard::idle_call, {});
    if (call.function != nullptr) {
      pytriton::guard::building_thread.FindNone(condition->native_handle());
      lock.unlock();
      call.function(call.argument);
      lock.lock();
      return;  // the caller checks again whether a request has arrived
    }
    pytriton::guard::instance_thread.BeginWait();
    pytriton::guard::building_thread.BeginWait(condition->native_handle());
  }
  pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
