#include "model_instance/responses.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "model_instance/held_responses.h"
#include "triton/bytes_tensor.h"
#include "triton/datatype.h"
#include "triton/error.h"

namespace pytriton {

namespace {

// Where Triton wants an output: in the memory of a GPU, or of the computer.
struct OutputBuffer {
  char* data;
  int64_t device;
};

// Splits an output column into the requests' rows.
class OutputReader {
 public:
  OutputReader(const TensorColumn& column, const char* data, int64_t total_rows)
      : column_(column), data_(data), stacked_(column.is_stacked()), total_rows_(total_rows) {
    if (stacked_ && column.place != Place::kOnDevice) Start(column.tensors[0]);
  }

  // Of a column in the memory of a GPU: where its tensor lies there.
  void OpenOnDevice(PeerDeviceArena* arena) {
    const TensorLocation& tensor = column_.tensors[0];
    data_ = arena->At(data_ + tensor.offset, tensor.size, &device_);
    Start({0, tensor.size, tensor.shape});
  }

  // Adds the next request's output to its response; `response` is null if the request has failed or did not request it.
  void Next(size_t request, int64_t rows, TRITONBACKEND_Response* response, const char* name) {
    if (!stacked_) {
      const TensorLocation& tensor = column_.tensors[request];
      if (tensor.offset < 0) return;
      Start(tensor);
      Take(tensor.shape, response, name);
      return;
    }
    std::vector<int64_t> shape = column_.tensors[0].shape;
    if (!shape.empty() && shape[0] == total_rows_) shape[0] = rows;
    Take(shape, response, name);
  }

 private:
  void Start(const TensorLocation& tensor) {
    const int64_t count = ElementCount(tensor.shape.data(), tensor.shape.size());
    const bool is_bytes = column_.datatype == TRITONSERVER_TYPE_BYTES;
    const int64_t least = count * (is_bytes ? kLengthSize : ItemSize(column_.datatype));
    if (count < 0 || tensor.offset < 0 || (is_bytes ? tensor.size < least : tensor.size != least)) {
      throw ProtocolError("the worker sent a tensor whose size does not match its shape");
    }
    position_ = data_ + tensor.offset;
    contents_ = position_ + (is_bytes ? least : 0);
    end_ = position_ + tensor.size;
  }

  void Take(const std::vector<int64_t>& shape, TRITONBACKEND_Response* response, const char* name) {
    const int64_t count = ElementCount(shape.data(), shape.size());
    const bool is_bytes = column_.datatype == TRITONSERVER_TYPE_BYTES;
    int64_t size = count * ItemSize(column_.datatype);
    int64_t contents_size = 0;
    if (is_bytes) {
      for (int64_t i = 0; i < count; ++i) contents_size += Length(i);
      if (contents_size > end_ - contents_) throw ProtocolError("the worker sent strings that overrun their tensor");
      size = count * kLengthSize + contents_size;
    }
    // Advanced first, so that the following requests are read correctly even if this buffer cannot be allocated.
    const char* lengths = position_;
    const char* source = is_bytes ? contents_ : position_;
    position_ += is_bytes ? count * kLengthSize : size;
    contents_ += contents_size;
    if (response == nullptr) return;
    const OutputBuffer buffer = Allocate(response, name, shape, size);
    if (!is_bytes) return Copy(buffer, source, size);
    if (buffer.device == kInMemory) return PutStrings(buffer.data, size, lengths, source, count);
    std::string strings(size, '\0');
    PutStrings(strings.data(), size, lengths, source, count);
    Copy(buffer, strings.data(), size);
  }

  // Writes strings in Triton's layout: each length before its element. There is room for `size` bytes, even if the
  // worker changes the lengths meanwhile.
  static void PutStrings(char* target, int64_t size, const char* lengths, const char* source, int64_t count) {
    const char* const end = target + size;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t length;
      std::memcpy(&length, lengths + i * kLengthSize, kLengthSize);
      if (end - target < kLengthSize + int64_t{length}) throw ProtocolError("the worker changes what it has sent");
      std::memcpy(target, &length, kLengthSize);
      std::memcpy(target + kLengthSize, source, length);
      target += kLengthSize + length;
      source += length;
    }
  }

  void Copy(const OutputBuffer& buffer, const char* source, int64_t size) const {
    CopyTensor(buffer.data, source, size, device_ != kInMemory ? device_ : buffer.device);
  }

  uint32_t Length(int64_t element) const {
    uint32_t length;
    std::memcpy(&length, position_ + element * kLengthSize, kLengthSize);
    return length;
  }

  OutputBuffer Allocate(TRITONBACKEND_Response* response, const char* name, const std::vector<int64_t>& shape,
                        int64_t size) const {
    TRITONBACKEND_Output* output = nullptr;
    Check(TRITONBACKEND_ResponseOutput(response, &output, name, static_cast<TRITONSERVER_DataType>(column_.datatype),
                                       shape.data(), static_cast<uint32_t>(shape.size())));
    void* buffer = nullptr;
    // What is preferred; the client has the last word.
    TRITONSERVER_MemoryType type = device_ == kInMemory ? TRITONSERVER_MEMORY_CPU : TRITONSERVER_MEMORY_GPU;
    int64_t type_id = device_ == kInMemory ? 0 : device_;
    Check(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &type_id));
    return {static_cast<char*>(buffer), type == TRITONSERVER_MEMORY_GPU ? type_id : kInMemory};
  }

  const TensorColumn& column_;
  const char* data_;
  int64_t device_ = kInMemory;  // the GPU in whose memory the column lies
  const bool stacked_;
  const int64_t total_rows_;
  const char* position_ = nullptr;  // of the next element, or with BYTES of its length
  const char* contents_ = nullptr;  // with BYTES, of the next element
  const char* end_ = nullptr;
};

// Checks that `position` is one of the model's outputs, and that it comes once.
void CheckPosition(int64_t position, std::vector<bool>* seen) {
  if (position < 0 || position >= static_cast<int64_t>(seen->size())) {
    throw ProtocolError("the worker sent an output that the model does not have");
  }
  if ((*seen)[position]) throw ProtocolError("the worker sent an output twice");
  (*seen)[position] = true;
}

void CheckColumns(const Batch& batch, const AdmissionMessage& model, const ResultMessage& result) {
  if (result.request_count != static_cast<int64_t>(batch.requests().size())) {
    throw ProtocolError("the worker's result is for another number of requests");
  }
  std::vector<bool> seen(model.outputs.size(), false);
  for (const TensorColumn& column : result.columns) {
    CheckPosition(column.position, &seen);
    const TensorLocation& first = column.tensors.at(0);
    if (column.place == Place::kInBatch && (first.offset < 0 || first.size < 0 || first.offset > batch.data_size() ||
                                            first.size > batch.data_size() - first.offset)) {
      throw ProtocolError("the worker refers to a part of the batch that does not exist");
    }
    if (column.place == Place::kOnDevice && (first.offset < 0 || column.datatype == TRITONSERVER_TYPE_BYTES)) {
      throw ProtocolError("the worker sent an output that cannot lie in the memory of a GPU");
    }
    const std::vector<int64_t>& shape = first.shape;
    if (column.is_stacked() && batch.requests().size() > 1 && (shape.empty() || shape[0] != batch.total_rows())) {
      throw ProtocolError("the worker stacked an output that has another number of rows than the batch");
    }
  }
}

// Workaround for Triton (cached-errors): keeps an error out of the response cache, from which Triton would serve it
// without error and without outputs. Triton does not cache a response that has an output without a buffer.
void KeepUncached(TRITONBACKEND_Response* response, const std::string& cached_output) {
  if (cached_output.empty()) return;
  TRITONBACKEND_Output* output = nullptr;
  LogIfError(TRITONBACKEND_ResponseOutput(response, &output, cached_output.c_str(), TRITONSERVER_TYPE_BOOL, nullptr, 0),
             "cannot keep an error out of the response cache");
}

void SetParameters(TRITONBACKEND_Response* response, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    const char* key = parameter.key.c_str();
    double number = 0;
    switch (parameter.type) {
      case ParameterType::kString:
        Check(TRITONBACKEND_ResponseSetStringParameter(response, key, parameter.text.c_str()));
        break;
      case ParameterType::kInt:
        Check(TRITONBACKEND_ResponseSetIntParameter(response, key, parameter.number));
        break;
      case ParameterType::kBool:
        Check(TRITONBACKEND_ResponseSetBoolParameter(response, key, parameter.number != 0));
        break;
      case ParameterType::kDouble:
        if (TRITONBACKEND_ResponseSetDoubleParameter == nullptr) {
          throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED,
                            "response parameter '" + parameter.key +
                                "' is a floating-point number, which this server cannot send: send it as a string");
        }
        std::memcpy(&number, &parameter.number, sizeof(number));
        Check(TRITONBACKEND_ResponseSetDoubleParameter(response, key, number));
        break;
      default:
        throw ProtocolError("the worker sent a parameter of an unknown type");
    }
  }
}

}  // namespace

Outcome Reschedule(TRITONBACKEND_Request* request, const std::string& cached_output) {
  TRITONSERVER_Error* error = TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE);
  if (error == nullptr) return Outcome::kRescheduled;
  const std::string reason = std::string("the request cannot be rescheduled: ") + TRITONSERVER_ErrorMessage(error);
  RespondError(request, TRITONSERVER_ErrorCode(error), reason, cached_output);
  TRITONSERVER_ErrorDelete(error);
  return Outcome::kFailed;
}

void RespondError(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message,
                  const std::string& cached_output) {
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
  if (failed != nullptr) {
    LogIfError(failed, "cannot create a response");
    return;
  }
  KeepUncached(response, cached_output);
  SendFinal(response, TRITONSERVER_ErrorNew(code, message.c_str()));
}

bool Respond(const Batch& batch, const AdmissionMessage& model, const ResponseEntry& entry, const char* data,
             const std::string& cached_output) {
  std::vector<bool> seen(model.outputs.size(), false);
  for (const ResponseOutput& output : entry.outputs) CheckPosition(output.position, &seen);
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, batch.requests()[entry.request]);
  if (failed != nullptr) {
    LogIfError(failed, "cannot create a response");
    return false;
  }
  TRITONSERVER_Error* error = Guarded([&] {
    SetParameters(response, entry.parameters);
    for (const ResponseOutput& output : entry.outputs) {
      if (!batch.wants(entry.request, output.position)) continue;
      const TensorColumn column = {output.position, output.datatype, Place::kApart, {output.tensor}};
      OutputReader(column, data, 0).Next(0, 0, response, model.outputs[output.position].c_str());
    }
  });
  if (error != nullptr) KeepUncached(response, cached_output);
  const bool succeeded = error == nullptr;
  if (entry.final || !succeeded) {
    SendFinal(response, error);
  } else {
    LogIfError(TRITONBACKEND_ResponseSend(response, 0, nullptr), "cannot send a response");
  }
  return succeeded;
}

void RespondFinal(TRITONBACKEND_Request* request) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  TRITONSERVER_Error* error = TRITONBACKEND_ResponseFactoryNew(&factory, request);
  if (error == nullptr) return SendFinal(factory);
  LogIfError(error, "cannot end a response");
}

void ReportFailures(const std::vector<RequestFailure>& failures, size_t request_count, const InstanceMetrics& metrics) {
  for (const RequestFailure& failure : failures) {
    if (!failure.failure.detail.empty()) Log(TRITONSERVER_LOG_ERROR, failure.failure.detail);
    metrics.CountError(failure.failure.error, failure.request < 0 ? request_count : 1);
  }
}

std::vector<Outcome> Respond(const Batch& batch, Connection* connection, const ResultMessage& result, const char* data,
                             const std::string& cached_output, const std::vector<bool>& left_out) {
  const AdmissionMessage& model = connection->model();
  CheckColumns(batch, model, result);
  const size_t request_count = batch.requests().size();
  std::vector<const RequestFailure*> failures(request_count, nullptr);
  for (const RequestFailure& failure : result.failures) {
    if (failure.request < 0) {
      failures.assign(request_count, &failure);
    } else if (failure.request < static_cast<int64_t>(request_count)) {
      failures[failure.request] = &failure;
    }
  }

  std::vector<const std::vector<Parameter>*> parameters(request_count, nullptr);
  for (const ResponseParameters& each : result.parameters) {
    if (each.request < 0 || each.request >= static_cast<int64_t>(request_count)) {
      throw ProtocolError("the worker sent parameters of a response that does not exist");
    }
    parameters[each.request] = &each.parameters;
  }

  std::vector<OutputReader> outputs;
  outputs.reserve(result.columns.size());
  std::optional<RequestFailure> unopened;  // if there are outputs that cannot be read
  for (const TensorColumn& column : result.columns) {
    outputs.emplace_back(column, column.place == Place::kInBatch ? batch.data() : data, batch.total_rows());
    if (column.place != Place::kOnDevice || unopened.has_value()) continue;
    try {
      outputs.back().OpenOnDevice(connection->worker_device_arena());
    } catch (const cuda::CudaError& error) {
      unopened = RequestFailure{-1, {TRITONSERVER_ERROR_INTERNAL, error.what(), "", "CudaError"}};
    }
  }
  if (unopened.has_value()) {
    outputs.clear();
    const RequestFailure* const none = nullptr;
    const RequestFailure* const failure = &*unopened;
    std::replace(failures.begin(), failures.end(), none, failure);
  }

  std::vector<Outcome> outcomes(request_count, Outcome::kFailed);
  for (size_t i = 0; i < request_count; ++i) {
    TRITONBACKEND_Request* request = batch.requests()[i];
    TRITONBACKEND_Response* response = nullptr;
    if (!left_out.empty() && left_out[i]) {
      // Its part of the outputs is skipped below.
    } else if (failures[i] != nullptr && failures[i]->failure.is_reschedule()) {
      outcomes[i] = Reschedule(request, cached_output);
    } else if (failures[i] != nullptr) {
      RespondError(request, static_cast<TRITONSERVER_Error_Code>(failures[i]->failure.code),
                   failures[i]->failure.message, cached_output);
    } else {
      LogIfError(TRITONBACKEND_ResponseNew(&response, request), "cannot create a response");
    }
    TRITONSERVER_Error* error = nullptr;
    if (response != nullptr && parameters[i] != nullptr) {
      error = Guarded([&] { SetParameters(response, *parameters[i]); });
    }
    for (size_t c = 0; c < outputs.size(); ++c) {
      const size_t output = result.columns[c].position;
      const bool wanted = response != nullptr && error == nullptr && batch.wants(i, output);
      TRITONSERVER_Error* failed = Guarded(
          [&] { outputs[c].Next(i, batch.rows(i), wanted ? response : nullptr, model.outputs[output].c_str()); });
      if (error == nullptr) {
        error = failed;
      } else if (failed != nullptr) {
        TRITONSERVER_ErrorDelete(failed);
      }
    }
    if (response != nullptr) {
      if (error != nullptr) KeepUncached(response, cached_output);
      if (error == nullptr) outcomes[i] = Outcome::kSucceeded;
      SendFinal(response, error);
    } else if (error != nullptr) {
      TRITONSERVER_ErrorDelete(error);
    }
  }
  return outcomes;
}

}  // namespace pytriton
