#include "guard/batcher.h"

#include "guard/condition_table.h"

namespace pytriton::guard {

namespace {

ConditionTable<Batcher> batchers;

}  // namespace

Batcher* Batcher::Find(const pthread_cond_t* condition) { return batchers.Find(condition); }

Batcher* Batcher::Begin(pthread_cond_t* condition) {
  Batcher* const batcher = batchers.Add(condition);
  if (batcher == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(batcher->mutex_);
  batcher->generation_.fetch_add(1);
  batcher->condition_ = condition;
  return batcher;
}

void Batcher::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  generation_.fetch_add(1);
  held_.store(0);
  condition_ = nullptr;
  batchers.Remove(this);
}

bool Batcher::BeginWait(Awaits awaits) {
  awaits_.store(awaits);
  if (!is_woken_.exchange(false)) return true;
  awaits_.store(Awaits::kNothing);
  return false;
}

void Batcher::EndWait() {
  awaits_.store(Awaits::kNothing);
  is_woken_.store(false);
}

bool Batcher::Hold(uint32_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() != generation) return false;
  held_.fetch_add(1);
  return true;
}

void Batcher::Release(uint32_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() == generation) held_.fetch_sub(1);
}

bool Batcher::is_held() const { return held_.load() > 0 && held_.load() >= instance_count_.load(); }

bool Batcher::PutOff() {
  // Other waits, such as for the end of a queue delay, have their own timeout.
  if (awaits_.load() == Awaits::kNothing || !is_held()) return false;
  is_put_off_.store(true);
  return is_held();  // otherwise, an instance may have checked already
}

bool Batcher::WakeIfPutOff(uint32_t generation) {
  if (!is_put_off_.load()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() != generation || !is_put_off_.exchange(false)) return false;
  WakeLocked();
  return true;
}

void Batcher::Wake(uint32_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_.load() == generation) WakeLocked();
}

void Batcher::WakeLocked() {
  is_woken_.store(true);
  if (condition_ != nullptr) pthread_cond_signal(condition_);
}

}  // namespace pytriton::guard
