#include "guard/request_queue.h"

#include <mutex>

#include "guard/condition_table.h"

namespace pytriton::guard {

namespace {

ConditionTable<RequestQueue> queues;
std::mutex mutex;  // for the threads of all queues

}  // namespace

RequestQueue* RequestQueue::Find(const pthread_cond_t* condition) { return queues.Find(condition); }

RequestQueue* RequestQueue::Join(pthread_cond_t* condition) {
  const std::lock_guard<std::mutex> lock(mutex);
  RequestQueue* queue = queues.Find(condition);
  if (queue == nullptr) queue = queues.Add(condition);
  if (queue == nullptr) return nullptr;
  queue->condition_.store(condition);
  ++queue->thread_count_;
  return queue;
}

void RequestQueue::Leave() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (--thread_count_ > 0) return;
  condition_.store(nullptr);
  is_put_off_.store(false);
  queues.Remove(this);
}

void RequestQueue::Release() {
  if (held_.fetch_sub(1) == 1 && is_put_off_.exchange(false)) Wake();
}

void RequestQueue::HaveTakenAll() {
  if (is_put_off_.load(std::memory_order_relaxed)) is_put_off_.store(false);
}

bool RequestQueue::PutOff(const pthread_cond_t* condition) {
  if (held_.load() == 0) return false;
  is_put_off_.store(true);
  // Otherwise, the instance may have checked already, or the queue may be another one by now.
  return held_.load() > 0 && condition_.load() == condition;
}

}  // namespace pytriton::guard
