// One model instance: takes batches from Triton, has its worker infer them, and answers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model_instance/batch.h"
#include "model_instance/client_process_watch.h"
#include "model_instance/concurrent_executor.h"
#include "model_instance/responses.h"
#include "model_instance/restart_counter.h"
#include "python_models/worker_supervisor.h"
#include "services/service_thread.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "triton/workarounds/warmup_guard.h"

namespace pytriton {

class Instance {
 public:
  using Observer = std::function<void(const std::shared_ptr<Arena>&, const std::shared_ptr<ClientProcessWatch>&)>;

  // Finds the instance's worker and connects to it; throws when there is none. `on_connect` hears of each connection.
  // The worker is the keeper's, or where there is none, it is asked for at a registry.
  Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, ServiceThread* services,
           std::unique_ptr<WorkerSupervisor> supervisor = nullptr);

  // Infers a batch and answers all of its requests, whatever happens; later, where the worker takes many at a time.
  // Owns the requests from here on.
  void Execute(TRITONBACKEND_Request** requests, uint32_t request_count);

  // Throws TritonError where the keeper's worker cannot infer; from any thread.
  void CheckReady() const;

 private:
  // Waits for a worker whose process is being started again, for as long as that is `wanted`.
  void Connect(int timeout_ms, const std::function<bool()>& wanted);
  void Count(int64_t restart_counter);
  void ReadWorkerFile(const std::string& path);
  void ReadConfig();
  std::shared_ptr<Connection> ConnectToKept(const std::function<bool()>& wanted) const;
  std::shared_ptr<Connection> ConnectToBound(int service_fd, int timeout_ms, const std::function<bool()>& wanted);
  bool alive() const;
  void ExecuteOne(TRITONBACKEND_Request** requests, uint32_t request_count);
  std::vector<Outcome> Infer(Connection* connection, Batch* batch, Timing* timing);
  std::vector<Outcome> Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const;
  void Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& reason) const;

  TRITONBACKEND_ModelInstance* const instance_;
  const Observer on_connect_;
  ServiceThread* const services_;
  const RequestStatistics statistics_;
  const std::unique_ptr<WorkerSupervisor> supervisor_;
  TRITONSERVER_Server* server_ = nullptr;
  std::string registry_;
  RegistrationMessage identity_;
  std::string cached_output_;
  std::unique_ptr<WarmupGuard> warmup_;
  std::shared_ptr<ServiceChannel> service_;       // of the worker's
  std::shared_ptr<Connection> connection_;        // null while there is no worker
  std::unique_ptr<ConcurrentExecutor> executor_;  // of the connection, where the worker takes many batches at a time
  std::shared_ptr<ClientProcessWatch> client_process_;  // null where there is a keeper
  std::unique_ptr<RestartCounter> restart_counter_;     // of a bound model whose worker has a process of its own
  int64_t restarts_seen_ = 0;
};

}  // namespace pytriton
