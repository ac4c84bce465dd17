// Responds to all requests of a batch with their parts of its result.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "model_instance/batch.h"
#include "model_instance/output_reader.h"
#include "model_instance/request_responder.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/request_statistics.h"
#include "wire/inference.h"

namespace pytriton {

class ResultResponder {
 public:
  // `data`: the result's tensors. All arguments outlive the object. Throws ProtocolError if the result does not fit the
  // batch.
  ResultResponder(const Batch& batch, Connection* connection, const ResultMessage& result, const char* data,
                  const RequestResponder& responder);

  // Responds to each request with its requested outputs or its error, except to those that are `left_out`, if any are.
  // Returns the outcome of each request. To be called once.
  std::vector<Outcome> Respond(const std::vector<bool>& left_out = {});

 private:
  void CheckColumns() const;
  void AssignFailures();
  void AssignParameters();
  void OpenOutputs(const char* data);
  Outcome RespondTo(size_t request);
  Outcome RespondFailure(size_t request) const;
  // Reads the next request's parts of all outputs, and adds the requested ones to `response` unless that is null.
  // Returns the first error, if any.
  TRITONSERVER_Error* ReadOutputs(size_t request, TRITONBACKEND_Response* response);
  void SkipOutputs(size_t request);

  const Batch& batch_;
  Connection* const connection_;
  const AdmissionMessage& model_;
  const ResultMessage& result_;
  const RequestResponder& responder_;
  std::vector<const Failure*> failures_;                   // by request; null if it has not failed
  std::vector<const std::vector<Parameter>*> parameters_;  // of responses, by request; null if there are none
  std::vector<OutputReader> outputs_;
  std::optional<Failure> unreadable_;  // of all requests, if outputs cannot be read
};

}  // namespace pytriton
