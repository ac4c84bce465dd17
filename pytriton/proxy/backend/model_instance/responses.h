// What came of a batch on its way from the worker to Triton.
#pragma once

#include <string>
#include <vector>

#include "model_instance/batch.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "wire/inference.h"

namespace pytriton {

// Answers one request with an error. `cached_output` is an output of a model with a response cache, else empty.
void RespondError(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message,
                  const std::string& cached_output);

// Answers each request of the batch, with the outputs it asked for or with its error. `data` is where the result's
// tensors lie. Returns what came of each request.
std::vector<Outcome> Respond(const Batch& batch, const AdmissionMessage& model, const ResultMessage& result,
                             const char* data, const std::string& cached_output);

// Sends the response of an answer, with the outputs that its request asked for; `data` is where the tensors lie.
// Returns whether it could; else the request is answered with an error, and has ended. Throws ProtocolError, and
// answers nothing, where the outputs are not the model's.
bool Respond(const Batch& batch, const AdmissionMessage& model, const ResponseEntry& response, const char* data,
             const std::string& cached_output);

// Gives a request back to the server, which sends it again; where it cannot, the request is answered with an error.
Outcome Reschedule(TRITONBACKEND_Request* request, const std::string& cached_output);

// Tells the client that no more responses follow.
void RespondFinal(TRITONBACKEND_Request* request);

}  // namespace pytriton
