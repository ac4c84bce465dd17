// Messages that carry batches to a worker, and results and responses back. Counterpart of `wire/inference.py`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire/encoding.h"

namespace pytriton {

// Flag of a batch: the numbers of rows of its requests follow.
constexpr int64_t kHasRows = 1;
// Flag of a batch: a request has a trace context.
constexpr int64_t kIsTraced = 2;
// Flag of a batch: a request prefers an output in the memory of a GPU.
constexpr int64_t kWantsGpu = 4;
// Flag of a response entry: its parameters follow.
constexpr int64_t kHasParameters = 8;

// Options that specify how to handle a request; most requests set none.
struct RequestOptions {
  int64_t correlation_id = 0;      // the sequence that the request belongs to; the bits of an unsigned number
  std::string correlation_string;  // the same as a string; one of the two is empty
  int64_t flags = 0;               // TRITONSERVER_RequestFlag
  int64_t priority = 0;
  int64_t timeout_us = 0;
  int64_t trace = 0;          // its number
  std::string trace_context;  // of OpenTelemetry, as JSON; empty if the request has none

  // The numbers in the order in which they are encoded, after the correlation id; the trace's context follows.
  static const std::array<int64_t RequestOptions::*, 4>& Numbers();

  bool empty() const;
};

// The metadata of a request, besides its tensors; most have none.
struct RequestMetadata {
  std::string id;
  bool all_outputs = true;
  std::vector<int64_t> outputs;  // positions of the requested outputs, unless all are requested
  std::vector<Parameter> parameters;
  RequestOptions options;

  bool empty() const { return id.empty() && all_outputs && parameters.empty() && options.empty(); }
};

// Backend to worker: a batch of requests. The data starts with a cancel flag for each request: a byte that the backend
// sets to 1 when the request is cancelled.
struct BatchMessage {
  int64_t request_count = 0;
  std::vector<int64_t> rows;  // first dimension of each request; empty if the model does not batch
  std::vector<TensorColumn> columns;
  std::vector<RequestMetadata> metadata;  // empty if no request has any
  bool wants_gpu = false;                 // whether a request prefers an output in the memory of a GPU
};

// Replaces an error code: the request has not failed, but is returned to the server, which schedules it again.
constexpr int64_t kReschedule = -1;

// Why a request has no response.
struct Failure {
  int64_t code = 0;     // TRITONSERVER_Error_Code, or kReschedule
  std::string message;  // for the client
  std::string detail;   // for the server's log
  std::string error;    // the exception's class; empty if there was none

  bool is_reschedule() const { return code == kReschedule; }
};

// The failure of a request, or of the whole batch if `request` is -1.
struct RequestFailure {
  int64_t request = -1;
  Failure failure;
};

// The parameters of a response.
struct ResponseParameters {
  int64_t request = 0;  // in the batch
  std::vector<Parameter> parameters;
};

// Worker to backend: the result of a whole batch.
struct ResultMessage {
  int64_t request_count = 0;
  int64_t compute_start_ns = 0;  // CLOCK_MONOTONIC, when the inference callable was called
  int64_t compute_end_ns = 0;    // and when it had returned
  std::vector<RequestFailure> failures;
  std::vector<ResponseParameters> parameters;  // of responses that have any
  std::vector<TensorColumn> columns;
};

// One output of a response.
struct ResponseOutput {
  int64_t position = 0;  // in the model's configuration
  int64_t datatype = 0;
  TensorLocation tensor;
};

// An entry for one request of a batch: a response, a failure, its end (`final`), or several of these.
struct ResponseEntry {
  int64_t sequence = 0;  // of the batch
  int64_t request = 0;   // in the batch
  bool final = false;    // no more responses follow
  bool response = false;
  int64_t compute_start_ns = 0;  // CLOCK_MONOTONIC, when the inference callable was called
  int64_t compute_end_ns = 0;    // and when this was created
  std::optional<Failure> failure;
  std::vector<Parameter> parameters;
  std::vector<ResponseOutput> outputs;
};

// Worker to backend: responses to requests of any batches, in concurrent mode.
struct ResponsesMessage {
  std::vector<ResponseEntry> responses;
};

void Encode(const BatchMessage& message, MessageWriter* writer);
ResultMessage DecodeResult(MessageReader* reader);
ResponsesMessage DecodeResponses(MessageReader* reader);

}  // namespace pytriton
