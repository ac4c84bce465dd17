#include "maintenance_thread.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/heap_settings.h"

namespace pytriton {

namespace {

constexpr std::chrono::milliseconds kPeriod(500);
constexpr std::chrono::seconds kIdle(5);  // how long memory stays unused before it is returned to the system

// Returns those that are still referenced elsewhere; forgets the others.
template <typename T>
std::vector<std::shared_ptr<T>> Living(std::vector<std::weak_ptr<T>>* watched) {
  std::vector<std::shared_ptr<T>> living;
  watched->erase(std::remove_if(watched->begin(), watched->end(), [](const auto& each) { return each.expired(); }),
                 watched->end());
  for (const std::weak_ptr<T>& each : *watched) {
    if (std::shared_ptr<T> locked = each.lock()) living.push_back(std::move(locked));
  }
  return living;
}

}  // namespace

MaintenanceThread::MaintenanceThread(std::function<void()> also) : also_(std::move(also)), thread_([this] { Run(); }) {}

MaintenanceThread::~MaintenanceThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void MaintenanceThread::Watch(const std::shared_ptr<Arena>& arena,
                              const std::shared_ptr<ClientProcessWatch>& client_process) {
  const std::lock_guard<std::mutex> lock(mutex_);
  arenas_.push_back(arena);
  if (client_process != nullptr) client_processes_.push_back(client_process);
}

// When no batch has been written for a while.
void MaintenanceThread::TrimHeap(const std::vector<std::shared_ptr<Arena>>& arenas) {
  int64_t allocations = 0;
  for (const std::shared_ptr<Arena>& arena : arenas) allocations += arena->allocations();
  const Arena::Clock::time_point now = Arena::Clock::now();
  if (allocations != allocations_) {
    allocations_ = allocations;
    trim_at_ = now + kIdle;
  } else if (trim_at_ && now >= *trim_at_) {
    trim_at_.reset();
    ReturnFreedMemory();
  }
}

void MaintenanceThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    const std::vector<std::shared_ptr<Arena>> arenas = Living(&arenas_);
    const std::vector<std::shared_ptr<ClientProcessWatch>> client_processes = Living(&client_processes_);
    lock.unlock();
    for (const std::shared_ptr<Arena>& arena : arenas) arena->Trim(Arena::Clock::now() - kIdle);
    TrimHeap(arenas);
    ClientProcessWatch::UnloadThoseGone(client_processes);
    also_();
    lock.lock();
  }
}

}  // namespace pytriton
