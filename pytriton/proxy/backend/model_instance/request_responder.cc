#include "model_instance/request_responder.h"

#include "model_instance/held_responses.h"
#include "model_instance/output_reader.h"
#include "triton/error.h"
#include "triton/parameter.h"

namespace pytriton {

bool IsNewOutput(int64_t position, std::vector<bool>* seen) {
  if (position < 0 || position >= static_cast<int64_t>(seen->size())) {
    throw ProtocolError("the worker sent an output that the model does not have");
  }
  const bool is_new = !(*seen)[position];
  (*seen)[position] = true;
  return is_new;
}

void CheckOutputPosition(int64_t position, std::vector<bool>* seen) {
  if (!IsNewOutput(position, seen)) throw ProtocolError("the worker sent an output twice");
}

// Workaround for Triton (cached-errors): keeps an error out of the response cache, from which Triton would serve it
// without error and without outputs. Triton does not cache a response that has an output without a buffer.
void RequestResponder::KeepUncached(TRITONBACKEND_Response* response) const {
  if (cached_output_.empty()) return;
  TRITONBACKEND_Output* output = nullptr;
  LogIfError(
      TRITONBACKEND_ResponseOutput(response, &output, cached_output_.c_str(), TRITONSERVER_TYPE_BOOL, nullptr, 0),
      "cannot keep an error out of the response cache");
}

void RequestResponder::RespondError(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                                    const std::string& message) const {
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
  if (failed != nullptr) return LogIfError(failed, "cannot create a response");
  RespondFinal(response, TRITONSERVER_ErrorNew(code, message.c_str()));
}

void RequestResponder::RespondErrorAndContinue(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                                               const std::string& message) const {
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
  if (failed != nullptr) return LogIfError(failed, "cannot create a response");
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(code, message.c_str());
  LogIfError(TRITONBACKEND_ResponseSend(response, 0, error), "cannot send a response");
  TRITONSERVER_ErrorDelete(error);
}

bool RequestResponder::RespondOutputs(const Batch& batch, const AdmissionMessage& model, const ResponseEntry& entry,
                                      const char* data) const {
  std::vector<bool> seen(model.outputs.size(), false);
  for (const ResponseOutput& output : entry.outputs) CheckOutputPosition(output.position, &seen);
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, batch.requests()[entry.request]);
  if (failed != nullptr) {
    LogIfError(failed, "cannot create a response");
    return false;
  }
  TRITONSERVER_Error* error = Guarded([&] {
    for (const Parameter& parameter : entry.parameters) SetParameter(response, parameter);
    for (const ResponseOutput& output : entry.outputs) {
      if (!batch.wants(entry.request, output.position)) continue;
      const TensorColumn column = {output.position, output.datatype, Place::kApart, {output.tensor}};
      OutputReader(column, data, 0).Next(0, 0, response, model.outputs[output.position].c_str());
    }
  });
  const bool succeeded = error == nullptr;
  if (entry.final || !succeeded) {
    RespondFinal(response, error);
  } else {
    LogIfError(TRITONBACKEND_ResponseSend(response, 0, nullptr), "cannot send a response");
  }
  return succeeded;
}

void RequestResponder::RespondFinal(TRITONBACKEND_Response* response, TRITONSERVER_Error* error) const {
  if (error != nullptr) KeepUncached(response);
  SendFinal(response, error);
}

void RequestResponder::RespondEnd(TRITONBACKEND_Request* request) const {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  TRITONSERVER_Error* error = TRITONBACKEND_ResponseFactoryNew(&factory, request);
  if (error == nullptr) return SendFinal(factory);
  LogIfError(error, "cannot end a response");
}

Outcome RequestResponder::Reschedule(TRITONBACKEND_Request* request) const {
  TRITONSERVER_Error* error = TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE);
  if (error == nullptr) return Outcome::kRescheduled;
  const std::string reason = std::string("the request cannot be rescheduled: ") + TRITONSERVER_ErrorMessage(error);
  RespondError(request, TRITONSERVER_ErrorCode(error), reason);
  TRITONSERVER_ErrorDelete(error);
  return Outcome::kFailed;
}

}  // namespace pytriton
