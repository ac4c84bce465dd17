// One model instance: receives batches from Triton, sends them to its worker, and returns the responses.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model_instance/batch.h"
#include "model_instance/client_process_watch.h"
#include "model_instance/concurrent_executor.h"
#include "model_instance/responses.h"
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
  // connection. The worker is the supervisor's, or else the registry names it.
  Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, ServiceThread* services,
           AllModelMetrics* metrics, std::unique_ptr<WorkerSupervisor> supervisor = nullptr);

  // Executes a batch and responds to all of its requests, whatever happens; in concurrent mode, possibly later. Takes
  // ownership of the requests.
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
  void ExecuteOne(NotificationKind kind, TRITONBACKEND_Request** requests, uint32_t request_count);
  std::vector<Outcome> Infer(NotificationKind kind, Connection* connection, Batch* batch, Timing* timing);
  std::vector<Outcome> Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const;
  void Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& reason) const;

  TRITONBACKEND_ModelInstance* const instance_;
  const Observer on_connect_;
  ServiceThread* const services_;
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
  std::shared_ptr<ServiceChannel> service_;             // of the worker's
  std::shared_ptr<Connection> connection_;              // null while there is no worker
  std::unique_ptr<ConcurrentExecutor> executor_;        // in concurrent mode
  std::shared_ptr<ClientProcessWatch> client_process_;  // null if there is a supervisor
  std::unique_ptr<RestartCounter> restart_counter_;     // of a bound model whose worker has its own process
  int64_t restarts_seen_ = 0;
};

}  // namespace pytriton
