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
#include "model_instance/instance_context.h"
#include "model_instance/registry_client.h"
#include "model_instance/request_wait.h"
#include "model_instance/sequential_executor.h"
#include "model_instance/worker_pool.h"
#include "python_models/worker_supervisor.h"
#include "services/model_metrics.h"
#include "services/restart_counter.h"
#include "services/service_thread.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/model_config.h"

namespace pytriton {

class Instance {
 public:
  using Observer = std::function<void(const std::shared_ptr<Arena>&, const std::shared_ptr<ClientProcessWatch>&)>;

  // Finds the instance's worker and connects to it, unless its process is being restarted; throws if there is none.
  // `on_connect` is called for each connection. The worker is the supervisor's, or else the registry names it; the
  // latter is shared with the model's other instances, in `pool`. The instance counts itself in `instance_count`, the
  // model's.
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
  // Connects while the model is being loaded, unless the worker's process is being restarted.
  void ConnectAtLoad();
  // Waits for a worker whose process is being restarted, while `wanted` returns true.
  void Connect(int timeout_ms, const std::function<bool()>& wanted);
  // Counts the restarts of the worker's process since the last connection.
  void CountRestarts(int64_t restart_count);
  std::shared_ptr<Connection> ConnectToSupervised(const std::function<bool()>& wanted) const;
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
  // Executes the batch now that Triton has no more requests, or lets Triton check for more first.
  void ExecuteIdle();
  // Lets Triton check for requests for a short while before the thread sleeps.
  void AwaitRequest();
  // Does not throw: if this fails, the server exits and is restarted rather than losing requests.
  // `has_more`: whether requests may be waiting that are not in the batch.
  void ExecuteBuilt(bool has_more) noexcept;
  void RejectCancelled(const std::vector<TRITONBACKEND_Request*>& requests) const;
  // Rejects the requests of a batch for which there is no worker, for this reason or because they were cancelled.
  void RejectAll(TRITONBACKEND_Request** requests, uint32_t request_count, uint64_t exec_start,
                 const std::string& reason) const;

  const Observer on_connect_;
  ServiceThread* const services_;
  WorkerPool* const pool_;
  std::atomic<int>* const instance_count_;
  const std::unique_ptr<WorkerSupervisor> supervisor_;  // null for a bound model
  TRITONSERVER_Server* server_ = nullptr;
  const ModelConfig config_;
  const WorkerFile worker_file_;  // of a bound model
  const RegistrationMessage identity_;
  InstanceContext context_;
  int warmups_left_;                                         // batches of the warm-up that Triton has not sent yet
  ConnectedWorker worker_;                                   // its own
  ExecutionMode mode_ = ExecutionMode::kSequential;          // the worker's, once it was connected
  bool is_shared_ = false;                                   // whether it is in the pool
  const SequentialExecutor sequential_executor_;             // in sequential mode
  std::unique_ptr<ConcurrentExecutor> concurrent_executor_;  // null in sequential mode
  std::shared_ptr<ClientProcessWatch> client_process_;       // null if there is a supervisor
  std::unique_ptr<RestartCounter> restart_counter_;          // of a bound model whose worker has its own process
  int64_t restarts_seen_ = 0;
  std::unique_ptr<BatchBuilder> builder_;  // null if Triton makes the batches
  RequestWait request_wait_;               // if it builds the batches
  bool is_warned_ = false;                 // whether it has logged that it cannot build batches
};

}  // namespace pytriton
