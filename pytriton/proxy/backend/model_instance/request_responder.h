// Responds to single requests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model_instance/batch.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "wire/inference.h"
#include "wire/registration.h"

namespace pytriton {

class RequestResponder {
 public:
  // `cached_output`: an output of a model with a response cache, or empty.
  explicit RequestResponder(std::string cached_output) : cached_output_(std::move(cached_output)) {}

  const std::string& cached_output() const { return cached_output_; }

  // Responds with an error.
  void RespondError(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message) const;
  // The same for a request of a decoupled model, to which other responses may follow.
  void RespondErrorAndContinue(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                               const std::string& message) const;

  // Sends a response with the requested outputs; `data`: its tensors. Returns whether that succeeded; otherwise the
  // request received an error and has ended. Throws ProtocolError, without sending anything, if the outputs are not the
  // model's.
  bool RespondOutputs(const Batch& batch, const AdmissionMessage& model, const ResponseEntry& entry,
                      const char* data) const;

  // Sends the last response of a request, which has failed unless `error` is null, and deletes both.
  void RespondFinal(TRITONBACKEND_Response* response, TRITONSERVER_Error* error) const;

  // Ends a request without a response.
  void RespondEnd(TRITONBACKEND_Request* request) const;

  // Returns a request to the server, which schedules it again; if that fails, responds with an error.
  Outcome Reschedule(TRITONBACKEND_Request* request) const;

 private:
  void KeepUncached(TRITONBACKEND_Response* response) const;

  const std::string cached_output_;
};

// Checks that `position` is one of the model's outputs. Returns whether it occurs for the first time. Throws
// ProtocolError.
bool IsNewOutput(int64_t position, std::vector<bool>* seen);

// Checks that `position` is one of the model's outputs, and occurs once. Throws ProtocolError.
void CheckOutputPosition(int64_t position, std::vector<bool>* seen);

}  // namespace pytriton
