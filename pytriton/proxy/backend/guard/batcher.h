// The dynamic batcher of a model: a thread of Triton's core that makes batches of the requests in the model's queue.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace pytriton::guard {

// While all instances of its model are busy, a batcher can be held: what would wake it is put off.
//
// Batchers are known by their condition variables. They are never freed, since the threads of their models may outlive
// them; a later batcher may have the same object, with another generation.
class Batcher {
 public:
  enum class Awaits { kNothing, kRequests, kInstances };

  // Returns the batcher with this condition variable; null if there is none, or another one has its place.
  static Batcher* Find(const pthread_cond_t* condition);

  // Called by the batcher's thread: Begin when it first waits, and End when it exits.
  static Batcher* Begin(pthread_cond_t* condition);
  void End();
  // Waits as `pthread_cond_clockwait` does. With `is_early`, the wait may end early without a reason.
  int Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t now_ns, int64_t end_ns, bool is_early);

  uint32_t generation() const { return generation_.load(); }
  bool awaits_instances() const { return awaits_.load() == Awaits::kInstances; }

  // Holds the batcher on behalf of one of its model's instances, of which there are `instance_count`; returns false if
  // the generation has passed.
  bool Hold(uint32_t generation, int instance_count);
  void Release(uint32_t generation);

  // Puts a wake-up off, if the batcher is held; returns false if it is not.
  bool PutOff();
  // Whether a wake-up has been put off; from now on, none has.
  bool TakePutOff() { return is_put_off_.exchange(false); }
  // Wakes the batcher, or has it look once more before it waits.
  void Wake(uint32_t generation);

 private:
  bool is_held() const;

  std::atomic<pthread_cond_t*> condition_{nullptr};
  std::atomic<uint32_t> generation_{0};
  std::atomic<Awaits> awaits_{Awaits::kNothing};
  std::atomic<bool> is_woken_{false};
  std::atomic<bool> is_put_off_{false};
  std::atomic<int> held_{0};  // by so many instances
  std::atomic<int> instance_count_{0};
  int64_t early_after_ns_ = 0;
  std::mutex mutex_;  // held while another thread wakes or holds the batcher, and when it ends
};

}  // namespace pytriton::guard
