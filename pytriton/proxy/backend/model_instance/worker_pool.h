// The workers of a model's instances: an instance that executes a batch uses the most recently busy idle worker.
// Triton hands requests to instances in turn. If each used its own worker, then under light load each worker would
// sleep while all others have their turn, and would have to be woken for each batch; the most recently busy one may
// still be spinning, and its code and data are in the processor's caches.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "services/service_channel.h"
#include "transport/connection.h"

namespace pytriton {

// An instance's connection to a worker. Belongs to its holder.
struct ConnectedWorker {
  bool alive() const { return connection != nullptr && connection->alive(); }

  std::shared_ptr<Connection> connection;   // null while there is none
  std::shared_ptr<ServiceChannel> service;  // of the worker's
};

class WorkerPool {
 public:
  // Holds a worker.
  class Lease {
   public:
    // For a worker outside the pool.
    explicit Lease(ConnectedWorker* worker) : worker_(worker) {}
    Lease(WorkerPool* pool, ConnectedWorker* worker) : pool_(pool), worker_(worker) {}
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), worker_(std::exchange(other.worker_, nullptr)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (pool_ != nullptr) pool_->Return(worker_);
    }
    ConnectedWorker* get() const { return worker_; }

   private:
    WorkerPool* pool_ = nullptr;
    ConnectedWorker* worker_;
  };

  // Lets all instances use a worker.
  void Add(ConnectedWorker* worker);
  // Removes a worker once no other instance holds it.
  void Remove(ConnectedWorker* worker);
  // Takes the most recently busy of the idle, connected workers; none if there is none, or if the caller's `own` worker
  // is not connected.
  std::optional<Lease> TakeLast(ConnectedWorker* own);
  // Takes this worker once no other instance holds it.
  Lease Take(ConnectedWorker* worker);

 private:
  void Return(ConnectedWorker* worker);
  void AwaitIdle(std::unique_lock<std::mutex>* lock, ConnectedWorker* worker);

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<ConnectedWorker*> idle_;  // the most recently busy one is last
};

}  // namespace pytriton
