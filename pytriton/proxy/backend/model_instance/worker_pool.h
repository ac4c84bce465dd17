// The workers of a model's instances: an instance that executes a batch uses the idle one that was busy last.
//
// Triton hands requests to instances in turn. If each used its own worker, then under little load each worker would
// sleep for as long as all others take together, and would have to be woken for each batch; the one that was busy last
// may still be spinning, and its code and data are in the processor's caches.
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

// A worker as an instance is connected to it. Belongs to whoever holds it.
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
    // Of a worker that is in no pool.
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
  // Takes a worker out, once nobody else holds it.
  void Remove(ConnectedWorker* worker);
  // Takes the worker that was busy last, of those that are idle and alive; none if there is none, or if the caller's
  // `own` worker is not alive.
  std::optional<Lease> TakeLast(ConnectedWorker* own);
  // Takes this worker, once nobody else holds it.
  Lease Take(ConnectedWorker* worker);

 private:
  void Return(ConnectedWorker* worker);
  void AwaitIdle(std::unique_lock<std::mutex>* lock, ConnectedWorker* worker);

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<ConnectedWorker*> idle_;  // the last is the one that was busy last
};

}  // namespace pytriton
