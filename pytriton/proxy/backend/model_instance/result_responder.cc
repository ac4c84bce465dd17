#include "model_instance/result_responder.h"

#include <algorithm>

#include "triton/error.h"
#include "triton/parameter.h"

namespace pytriton {

namespace {

void DeleteIfAny(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

// Checks that each response has an output at most once if it has several columns, one per datatype.
void CheckOnce(int64_t position, const ResultMessage& result) {
  std::vector<bool> present(static_cast<size_t>(result.request_count), false);
  for (const TensorColumn& column : result.columns) {
    if (column.position != position) continue;
    for (size_t i = 0; i < present.size(); ++i) {
      if (!column.is_stacked() && column.tensors.at(i).offset < 0) continue;
      if (present[i]) throw ProtocolError("the worker sent an output twice");
      present[i] = true;
    }
  }
}

}  // namespace

ResultResponder::ResultResponder(const Batch& batch, Connection* connection, const ResultMessage& result,
                                 const char* data, const RequestResponder& responder)
    : batch_(batch),
      connection_(connection),
      model_(connection->model()),
      result_(result),
      responder_(responder),
      failures_(batch.requests().size(), nullptr),
      parameters_(batch.requests().size(), nullptr) {
  CheckColumns();
  AssignFailures();
  AssignParameters();
  OpenOutputs(data);
}

void ResultResponder::CheckColumns() const {
  if (result_.request_count != static_cast<int64_t>(batch_.requests().size())) {
    throw ProtocolError("the worker's result is for another number of requests");
  }
  std::vector<bool> seen(model_.outputs.size(), false);
  for (const TensorColumn& column : result_.columns) {
    if (!IsNewOutput(column.position, &seen)) CheckOnce(column.position, result_);
    const TensorLocation& first = column.tensors.at(0);
    if (column.place == Place::kInBatch && (first.offset < 0 || first.size < 0 || first.offset > batch_.data_size() ||
                                            first.size > batch_.data_size() - first.offset)) {
      throw ProtocolError("the worker refers to a part of the batch that does not exist");
    }
    if (column.place == Place::kOnDevice && (first.offset < 0 || column.datatype == TRITONSERVER_TYPE_BYTES)) {
      throw ProtocolError("the worker sent an output that cannot lie in the memory of a GPU");
    }
    const std::vector<int64_t>& shape = first.shape;
    if (column.is_stacked() && batch_.requests().size() > 1 && (shape.empty() || shape[0] != batch_.total_rows())) {
      throw ProtocolError("the worker stacked an output that has another number of rows than the batch");
    }
  }
}

void ResultResponder::AssignFailures() {
  for (const RequestFailure& each : result_.failures) {
    if (each.request < 0) {
      failures_.assign(failures_.size(), &each.failure);
    } else if (each.request < static_cast<int64_t>(failures_.size())) {
      failures_[each.request] = &each.failure;
    }
  }
}

void ResultResponder::AssignParameters() {
  for (const ResponseParameters& each : result_.parameters) {
    if (each.request < 0 || each.request >= static_cast<int64_t>(parameters_.size())) {
      throw ProtocolError("the worker sent parameters of a response that does not exist");
    }
    parameters_[each.request] = &each.parameters;
  }
}

void ResultResponder::OpenOutputs(const char* data) {
  outputs_.reserve(result_.columns.size());
  for (const TensorColumn& column : result_.columns) {
    outputs_.emplace_back(column, column.place == Place::kInBatch ? batch_.data() : data, batch_.total_rows());
    if (column.place != Place::kOnDevice || unreadable_.has_value()) continue;
    try {
      outputs_.back().OpenOnDevice(connection_->worker_device_arena());
    } catch (const cuda::CudaError& error) {
      unreadable_ = Failure{TRITONSERVER_ERROR_INTERNAL, error.what(), "", "CudaError"};
    }
  }
  if (!unreadable_.has_value()) return;
  outputs_.clear();
  for (const Failure*& failure : failures_) {
    if (failure == nullptr) failure = &*unreadable_;
  }
}

std::vector<Outcome> ResultResponder::Respond(const std::vector<bool>& left_out) {
  std::vector<Outcome> outcomes(batch_.requests().size(), Outcome::kFailed);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!left_out.empty() && left_out[i]) {
      SkipOutputs(i);
    } else if (failures_[i] != nullptr) {
      outcomes[i] = RespondFailure(i);
      SkipOutputs(i);
    } else {
      outcomes[i] = RespondTo(i);
    }
  }
  return outcomes;
}

Outcome ResultResponder::RespondFailure(size_t request) const {
  TRITONBACKEND_Request* const failed = batch_.requests()[request];
  const Failure& failure = *failures_[request];
  if (failure.is_reschedule()) return responder_.Reschedule(failed);
  responder_.RespondError(failed, static_cast<TRITONSERVER_Error_Code>(failure.code), failure.message);
  return Outcome::kFailed;
}

Outcome ResultResponder::RespondTo(size_t request) {
  TRITONBACKEND_Response* response = nullptr;
  LogIfError(TRITONBACKEND_ResponseNew(&response, batch_.requests()[request]), "cannot create a response");
  if (response == nullptr) {
    SkipOutputs(request);
    return Outcome::kFailed;
  }
  TRITONSERVER_Error* error = nullptr;
  if (parameters_[request] != nullptr) {
    error = Guarded([&] {
      for (const Parameter& parameter : *parameters_[request]) SetParameter(response, parameter);
    });
  }
  if (error == nullptr) {
    error = ReadOutputs(request, response);
  } else {
    SkipOutputs(request);
  }
  responder_.RespondFinal(response, error);
  return error == nullptr ? Outcome::kSucceeded : Outcome::kFailed;
}

TRITONSERVER_Error* ResultResponder::ReadOutputs(size_t request, TRITONBACKEND_Response* response) {
  TRITONSERVER_Error* error = nullptr;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto output = static_cast<size_t>(result_.columns[i].position);
    const bool is_wanted = response != nullptr && error == nullptr && batch_.wants(request, output);
    TRITONSERVER_Error* failed = Guarded([&] {
      outputs_[i].Next(request, batch_.rows(request), is_wanted ? response : nullptr, model_.outputs[output].c_str());
    });
    if (error == nullptr) {
      error = failed;
    } else {
      DeleteIfAny(failed);
    }
  }
  return error;
}

void ResultResponder::SkipOutputs(size_t request) { DeleteIfAny(ReadOutputs(request, nullptr)); }

}  // namespace pytriton
