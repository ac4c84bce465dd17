// One model instance: takes batches from Triton, has its worker infer them, and answers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "accounts.h"
#include "batch.h"
#include "connection.h"
#include "owner.h"
#include "pipeline.h"
#include "responses.h"
#include "services.h"
#include "triton_api.h"
#include "warmup_guard.h"

namespace pytriton {

class Instance {
 public:
  using Observer = std::function<void(const std::shared_ptr<Arena>&, const std::shared_ptr<Owner>&)>;

  // Finds the instance's worker and connects to it; throws when there is none. `on_connect` hears of each connection.
  Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, Services* services);

  // Infers a batch and answers all of its requests, whatever happens; later, where the worker takes many at a time.
  // Owns the requests from here on.
  void Execute(TRITONBACKEND_Request** requests, uint32_t request_count);

 private:
  void Connect(int timeout_ms);
  bool alive() const;
  void ExecuteOne(TRITONBACKEND_Request** requests, uint32_t request_count);
  std::vector<bool> Infer(Connection* connection, Batch* batch, Timing* timing);
  std::vector<bool> Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const;
  void Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& reason) const;

  TRITONBACKEND_ModelInstance* const instance_;
  const Observer on_connect_;
  Services* const services_;
  const Accounts accounts_;
  TRITONSERVER_Server* server_ = nullptr;
  std::string registry_;
  RegistrationMessage identity_;
  std::string cached_output_;
  std::unique_ptr<WarmupGuard> warmup_;
  std::shared_ptr<ServiceChannel> service_;  // of the worker's
  std::shared_ptr<Connection> connection_;   // null while there is no worker
  std::unique_ptr<Pipeline> pipeline_;       // of the connection, where the worker takes many batches at a time
  std::shared_ptr<Owner> owner_;
};

}  // namespace pytriton
