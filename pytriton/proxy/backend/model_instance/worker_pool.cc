#include "model_instance/worker_pool.h"

#include <algorithm>

namespace pytriton {

void WorkerPool::Add(ConnectedWorker* worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.insert(idle_.begin(), worker);
}

void WorkerPool::Remove(ConnectedWorker* worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitIdle(&lock, worker);
}

std::optional<WorkerPool::Lease> WorkerPool::TakeLast(ConnectedWorker* own) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_own_idle = std::find(idle_.begin(), idle_.end(), own) != idle_.end();
  if (is_own_idle && !own->alive()) return std::nullopt;
  const auto last = std::find_if(idle_.rbegin(), idle_.rend(),
                                 [&](const ConnectedWorker* each) { return each == own || each->alive(); });
  if (last == idle_.rend()) return std::nullopt;
  ConnectedWorker* const worker = *last;
  idle_.erase(std::next(last).base());
  return std::optional<Lease>(std::in_place, this, worker);
}

WorkerPool::Lease WorkerPool::Take(ConnectedWorker* worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitIdle(&lock, worker);
  return Lease(this, worker);
}

void WorkerPool::Return(ConnectedWorker* worker) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(worker);
  }
  returned_.notify_all();
}

void WorkerPool::AwaitIdle(std::unique_lock<std::mutex>* lock, ConnectedWorker* worker) {
  auto found = idle_.end();
  returned_.wait(*lock, [&] {
    found = std::find(idle_.begin(), idle_.end(), worker);
    return found != idle_.end();
  });
  idle_.erase(found);
}

}  // namespace pytriton
