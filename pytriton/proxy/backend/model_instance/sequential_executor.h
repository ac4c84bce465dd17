// Sequential execution: one batch at a time, with one result for all of its requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_instance/batch.h"
#include "model_instance/instance_context.h"
#include "model_instance/worker_pool.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "wire/notification.h"

namespace pytriton {

class SequentialExecutor {
 public:
  // `context` outlives the executor.
  explicit SequentialExecutor(const InstanceContext* context) : context_(*context) {}

  // Executes a batch and responds to all of its requests, whatever happens. Takes ownership of the requests. If the
  // worker has disconnected or sends a malformed message, it has no connection afterwards.
  void Execute(NotificationKind kind, ConnectedWorker* worker, TRITONBACKEND_Request** requests,
               uint32_t request_count) const;

 private:
  // Responds to the requests; returns the outcome of each.
  std::vector<Outcome> Infer(NotificationKind kind, ConnectedWorker* worker, Batch* batch, Timing* timing) const;
  // Sends the batch to the worker, and waits for the result.
  Notification RoundTrip(NotificationKind kind, const ConnectedWorker& worker, Batch* batch, Timing* timing) const;
  std::vector<Outcome> Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const;
  // Reports the requests of a batch, and releases them. `metrics` is null for a warm-up.
  void Close(const Batch& batch, const std::vector<Outcome>& outcomes, const Timing& timing,
             InstanceMetrics* metrics) const;

  const InstanceContext& context_;
};

}  // namespace pytriton
