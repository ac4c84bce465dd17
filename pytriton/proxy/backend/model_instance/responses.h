// Sends results and responses of the worker to Triton.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model_instance/batch.h"
#include "services/model_metrics.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "wire/inference.h"

namespace pytriton {

// Responds to a request with an error. `cached_output`: an output of a model with a response cache, or empty.
void RespondError(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message,
                  const std::string& cached_output);

// Logs the details of failed requests, and counts them. `request_count`: the number of requests in the batch.
void ReportFailures(const std::vector<RequestFailure>& failures, size_t request_count, const InstanceMetrics& metrics);

// Responds to each request of the batch, with its requested outputs or its error, except to those that are `left_out`,
// if any are. `data`: the result's tensors. Returns the outcome of each request.
std::vector<Outcome> Respond(const Batch& batch, Connection* connection, const ResultMessage& result, const char* data,
                             const std::string& cached_output, const std::vector<bool>& left_out = {});

// Sends a response with the requested outputs; `data`: its tensors. Returns whether that succeeded; otherwise the
// request got an error and has ended. Throws ProtocolError, without sending anything, if the outputs are not the
// model's.
bool Respond(const Batch& batch, const AdmissionMessage& model, const ResponseEntry& response, const char* data,
             const std::string& cached_output);

// Returns a request to the server, which schedules it again; if that fails, responds with an error.
Outcome Reschedule(TRITONBACKEND_Request* request, const std::string& cached_output);

// Ends a request without a response.
void RespondFinal(TRITONBACKEND_Request* request);

}  // namespace pytriton
