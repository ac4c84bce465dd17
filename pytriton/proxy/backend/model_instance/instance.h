// One model instance: receives batches from Triton, sends them to its worker, and returns the responses.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model_instance/batch.h"
#include "model_instance/batch_builder.h"
#include "model_instance/client_process_watch.h"
#include "model_instance/concurrent_executor.h"
#include "model_instance/responses.h"
#include "model_instance/worker_pool.h"
#include "python_models/restart_counter.h"
#include "python_models/worker_supervisor.h"
#include "services/model_metrics.h"
#include "services/service_thread.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "triton/workarounds/warmup_guard.h"

namespace pytriton {

class Instance {
 public:
  using Observer = std::function<void(const std::shared_ptr<Arena>&, const std::shared_ptr<ClientProcessWatch>&)>;

  // Finds the instance's worker and connects to it; throws if there is none. `on_connect` is called for each
  // connection. The worker is the supervisor's, or else the registry names it; the latter is shared with the model's
  // other instances, in `pool`. The instance counts itself in `instance_count`, the model's.
  Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, ServiceThread* services,
           AllModelMetrics* metrics, WorkerPool* pool, std::atomic<int>* instance_count,
           std::unique_ptr<WorkerSupervisor> supervisor = nullptr);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Executes a batch and responds to all of its requests, whatever happens; in concurrent mode, or if the instance
  // builds its batches, possibly later. Takes ownership of the requests.
  void Execute(TRITONBACKEND_Request** requests, uint32_t request_count);

  // Throws TritonError if the supervisor's worker cannot infer; from any thread.
  void CheckReady() const;

 private:
  // Waits for a worker whose process is being restarted, while `wanted` returns true.
  void Connect(int timeout_ms, const std::function<bool()>& wanted);
  void Count(int64_t restart_counter);
  void ReadWorkerFile(const std::string& path);
  void ReadConfig();
  std::shared_ptr<Connection> ConnectToKept(const std::function<bool()>& wanted) const;
  std::shared_ptr<Connection> ConnectToBound(int service_fd, int timeout_ms, const std::function<bool()>& wanted);
  bool alive() const;
  // Shares the worker with other instances, once it is warm.
  void ShareWorker();
  // Takes a worker that is alive, which may be another instance's; none if this instance has to connect to its own.
  std::optional<WorkerPool::Lease> TakeLiveWorker();
  WorkerPool::Lease TakeOwnWorker();
  void ExecuteBatch(TRITONBACKEND_Request** requests, uint32_t request_count);
  // Adds a request to the batch that is being built. It is executed once it is full, or Triton has no more requests.
  void AddToBatch(TRITONBACKEND_Request* request);
  // Whether the batch will be executed when Triton has no more requests.
  bool ExecutesWhenIdle();
  // Executes the batch now that Triton has no more requests, or lets Triton look for more first.
  void ExecuteIdle();
  // Does not throw: the server, which is started again, does not go on with requests that nobody has.
  void ExecuteBuilt() noexcept;
  void RejectCancelled(const std::vector<TRITONBACKEND_Request*>& requests) const;
  void ExecuteOne(NotificationKind kind, ConnectedWorker* worker, TRITONBACKEND_Request** requests,
                  uint32_t request_count);
  std::vector<Outcome> Infer(NotificationKind kind, ConnectedWorker* worker, Batch* batch, Timing* timing);
  std::vector<Outcome> Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const;
  void Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& reason) const;

  TRITONBACKEND_ModelInstance* const instance_;
  const Observer on_connect_;
  ServiceThread* const services_;
  WorkerPool* const pool_;
  std::atomic<int>* const instance_count_;
  const RequestStatistics statistics_;
  const std::unique_ptr<WorkerSupervisor> supervisor_;
  TRITONSERVER_Server* server_ = nullptr;
  std::string controller_;
  std::string registry_;
  RegistrationMessage identity_;
  std::string cached_output_;
  std::vector<uint32_t> input_ranks_;  // of the worker's inputs; 0 if unknown
  std::unique_ptr<WarmupGuard> warmup_;
  int warmups_left_ = 0;                                // batches of the warm-up that Triton has not sent yet
  std::unique_ptr<InstanceMetrics> metrics_;            // outlives the executor
  ConnectedWorker worker_;                              // its own
  bool is_sequential_ = false;                          // whether it takes one batch at a time
  bool is_shared_ = false;                              // whether it is in the pool
  std::unique_ptr<ConcurrentExecutor> executor_;        // in concurrent mode
  std::shared_ptr<ClientProcessWatch> client_process_;  // null if there is a supervisor
  std::unique_ptr<RestartCounter> restart_counter_;     // of a bound model whose worker has its own process
  int64_t restarts_seen_ = 0;
  std::unique_ptr<BatchBuilder> builder_;  // null if Triton makes the batches
  bool is_warned_ = false;                 // that it cannot build any
};

}  // namespace pytriton
