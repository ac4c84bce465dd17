// Periodic work for all instances, off the hot path: returns memory after a burst, unloads models whose client
// process has exited, and publishes metrics.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "model_instance/client_process_watch.h"
#include "transport/arena.h"

namespace pytriton {

class MaintenanceThread {
 public:
  // `also` is called in each period.
  explicit MaintenanceThread(std::function<void()> also);
  ~MaintenanceThread();
  MaintenanceThread(const MaintenanceThread&) = delete;
  MaintenanceThread& operator=(const MaintenanceThread&) = delete;

  // Adds an instance's arena and, if any, its process watch, for as long as they are referenced elsewhere.
  void Watch(const std::shared_ptr<Arena>& arena, const std::shared_ptr<ClientProcessWatch>& client_process = nullptr);

 private:
  void Run();
  void TrimHeap(const std::vector<std::shared_ptr<Arena>>& arenas);

  const std::function<void()> also_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::vector<std::weak_ptr<Arena>> arenas_;
  std::vector<std::weak_ptr<ClientProcessWatch>> client_processes_;
  int64_t allocations_ = 0;  // allocations so far, in all arenas
  std::optional<Arena::Clock::time_point> trim_at_;
  std::thread thread_;
};

}  // namespace pytriton
