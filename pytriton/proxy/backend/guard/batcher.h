// The dynamic batcher of a model: a thread of Triton's core that forms batches of the requests in the model's queue.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace pytriton::guard {

// While all instances of its model are busy, a batcher can be held: its wake-ups are postponed.
//
// Batchers are known by their condition variables. They are never freed, since the instances' threads may outlive them;
// a later batcher may have the same object, with another generation.
class Batcher {
 public:
  enum class Awaits { kNothing, kRequests, kInstances };

  // Returns the batcher with this condition variable; null if there is none.
  static Batcher* Find(const pthread_cond_t* condition);

  // Called by the batcher's thread: Begin before it first waits, and End when it exits. Begin returns null if there are
  // too many batchers.
  static Batcher* Begin(pthread_cond_t* condition);
  void End();
  // Called by the batcher's thread before and after it waits. BeginWait returns false if it must check its queue again
  // first.
  bool BeginWait(Awaits awaits);
  void EndWait();

  uint32_t generation() const { return generation_.load(); }
  bool awaits_instances() const { return awaits_.load() == Awaits::kInstances; }

  // Holds the batcher on behalf of one of its model's instances; returns false if the generation has passed.
  bool Hold(uint32_t generation);
  void Release(uint32_t generation);
  // How many instances the model has: the batcher is held while all of them hold it.
  void SetInstanceCount(int count) { instance_count_.store(count); }

  // Postpones a wake-up; returns false if the batcher is not held.
  bool PutOff();
  // Wakes the batcher if a wake-up was postponed; returns whether it was.
  bool WakeIfPutOff(uint32_t generation);
  // Wakes the batcher, or makes it check its queue again before it waits.
  void Wake(uint32_t generation);

 private:
  bool is_held() const;
  void WakeLocked();

  std::atomic<uint32_t> generation_{0};
  std::atomic<Awaits> awaits_{Awaits::kNothing};
  std::atomic<bool> is_woken_{false};
  std::atomic<bool> is_put_off_{false};
  std::atomic<int> held_{0};  // number of instances that hold it
  std::atomic<int> instance_count_{1};
  pthread_cond_t* condition_ = nullptr;  // null between two generations
  std::mutex mutex_;                     // for the condition and the generation; taken by other threads, and at the end
};

}  // namespace pytriton::guard
