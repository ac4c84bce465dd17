// The state of a model instance that its executors share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model_instance/request_hold.h"
#include "model_instance/request_responder.h"
#include "services/model_metrics.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "triton/workarounds/warmup_guard.h"
#include "wire/inference.h"

namespace pytriton {

struct InstanceContext {
  // Adds the model's name to the reason of an error.
  std::string Describe(const std::string& reason) const { return "model '" + model + "': " + reason; }

  // Responds to a request with an error, and releases it.
  void Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message) const;

  // Logs the detail of a failure, and counts it for a number of requests.
  void Report(const Failure& failure, size_t request_count) const;
  // Reports the failures of a batch with a number of requests.
  void Report(const std::vector<RequestFailure>& failures, size_t request_count) const;

  const std::string model;  // its name
  const RequestStatistics statistics;
  const RequestResponder responder;
  const std::unique_ptr<WarmupGuard> warmup;
  const std::unique_ptr<InstanceMetrics> metrics;
  std::vector<uint32_t> input_ranks = {};  // dimensions of each input of the worker; 0 if they are unknown
  const std::unique_ptr<RequestHold> hold = std::make_unique<RequestHold>();
};

}  // namespace pytriton
