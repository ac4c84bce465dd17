// The queue from which the instances of a model take requests, if they build their batches.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace pytriton::guard {

// While an instance holds the queue, because it will soon look for requests itself, no other instance is woken for
// them.
//
// Queues are known by their condition variables.
class RequestQueue {
 public:
  // Returns the queue with this condition variable; null if no thread uses it.
  static RequestQueue* Find(const pthread_cond_t* condition);

  // Called by the thread of an instance: Join before it uses the queue, and Leave when it exits. Join returns null if
  // there are too many queues.
  static RequestQueue* Join(pthread_cond_t* condition);
  void Leave();

  // Holds the queue on behalf of an instance, until it is released.
  void Hold() { held_.fetch_add(1); }
  // Wakes another instance if requests have arrived for which none was woken, unless another one holds the queue, too.
  void Release();
  // Wakes an instance, if any is idle.
  void Wake() const { pthread_cond_signal(condition_.load()); }
  // Called while the queue is locked and empty.
  void HaveTakenAll();

  // Postpones the wake-up of an instance; returns false if no instance holds the queue.
  bool PutOff(const pthread_cond_t* condition);

 private:
  std::atomic<int> held_{0};  // number of instances that hold it
  std::atomic<bool> is_put_off_{false};
  std::atomic<pthread_cond_t*> condition_{nullptr};
  int thread_count_ = 0;
};

}  // namespace pytriton::guard
