// Messages of a service channel: what a worker requests from the server, and the replies. Counterpart of
// `wire/service.py`.
//
// Notifications and messages have the general layout. The channel has its own socket.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/encoding.h"

namespace pytriton {

// The kinds of notifications on a service channel. A notification's sequence is the number of the call, from 1, which
// the worker chooses; 0 if there is no reply.
enum class ServiceNotification : int64_t {
  kOpen = 1,    // worker: its arena, and in `offset` the protocol's version
  kOpened = 2,  // backend: its arena
  kInfer = 3,   // worker: an InferenceCallMessage
  kCancel = 4,  // worker: the call is cancelled
  kLog = 5,     // worker: a LogMessage
  kModel = 6,   // worker: a ModelMessage
  kMetric = 7,  // worker: a MetricMessage
  kReply = 8,   // backend: an InferenceReplyMessage; of size 0 if there was no room for it
  kDone = 9,    // backend: in `offset`, the result of a kModel or kMetric
  kActivity =
      10,  // backend: of a traced call; in `offset` a TRITONSERVER_InferenceTraceActivity, in `size` when it was
};

// Replaces an activity: no more follow.
constexpr int64_t kReleased = -1;

// Added to the datatype of a tensor in the memory of a GPU, which is replaced by a DeviceLocation.
constexpr int64_t kOnDevice = 256;

inline bool IsOnDevice(int64_t datatype) { return (datatype & kOnDevice) != 0; }

struct InferenceCallInput {
  std::string name;
  int64_t datatype = 0;
  TensorLocation tensor;  // BYTES in Triton's layout: each element after its length
};

// Worker to backend: a request to a model of the server.
struct InferenceCallMessage {
  std::string model;
  int64_t version = -1;  // Triton's choice
  std::string request_id;
  int64_t flags = 0;
  int64_t priority = 0;
  int64_t timeout_us = 0;
  int64_t correlation_number = 0;
  std::string correlation_text;  // replaces the number unless it is empty
  int64_t batch = -1;            // the batch for which the call is made; -1 unknown, 0 the only one
  std::string preferred_gpu;     // the id of the GPU in whose memory outputs may be; empty if in none
  bool all_outputs = true;
  std::vector<std::string> outputs;
  std::vector<Parameter> parameters;
  std::vector<InferenceCallInput> inputs;
  std::string trace_context;  // of OpenTelemetry, as JSON; empty if the request is not traced
};

// One output of a reply, in its own block: `offset` is relative to the arena, -1 if there is no data.
struct InferenceReplyOutput {
  std::string name;
  int64_t datatype = 0;
  int64_t offset = -1;
  int64_t size = 0;
  std::vector<int64_t> shape;
};

// Backend to worker: a response, an error, the end of the replies, or several of these.
struct InferenceReplyMessage {
  bool final = false;
  bool response = false;
  bool failed = false;
  int64_t code = 0;     // if it has failed: a TRITONSERVER_Error_Code
  std::string message;  // and why
  std::string model;    // the rest is of a response
  int64_t version = -1;
  std::string request_id;
  std::vector<Parameter> parameters;
  std::vector<InferenceReplyOutput> outputs;
};

// Worker to backend: a line for the server's log.
struct LogMessage {
  int64_t level = 0;  // TRITONSERVER_LogLevel
  int64_t line = 0;
  std::string file;
  std::string text;
};

enum class ModelOperation : int64_t { kLoad = 1, kUnload = 2, kUnloadWithDependents = 3, kIsReady = 4 };

// Worker to backend: an operation on a model.
struct ModelMessage {
  ModelOperation command = ModelOperation::kIsReady;
  std::string model;
  int64_t version = -1;
  std::string config;
  struct File {
    std::string path;
    int64_t offset = 0;  // in the message's data
    int64_t size = 0;
  };
  std::vector<File> files;
};

enum class MetricOperation : int64_t {
  kFamily = 1,
  kMetric = 2,
  kIncrement = 3,
  kSet = 4,
  kObserve = 5,
  kValue = 6,
  kDelete = 7,
  kDeleteFamily = 8,
  kUpdate = 9
};

// A change of a metric: kIncrement, kSet or kObserve, the latter `count` times.
struct MetricUpdate {
  int64_t number = 0;
  MetricOperation operation = MetricOperation::kIncrement;
  double value = 0;
  int64_t count = 1;
};

// Worker to backend: an operation on a metric.
struct MetricMessage {
  MetricOperation command = MetricOperation::kValue;
  int64_t number = 0;  // of the family or of the metric
  int64_t kind = 0;    // TRITONSERVER_MetricKind
  double value = 0;
  std::string name;
  std::string description;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<double> buckets;
  std::vector<MetricUpdate> updates;  // of kUpdate
};

void Encode(const InferenceReplyMessage& message, MessageWriter* writer);
InferenceCallMessage DecodeCall(MessageReader* reader);
LogMessage DecodeLog(MessageReader* reader);
ModelMessage DecodeModel(MessageReader* reader, int64_t size);
MetricMessage DecodeMetric(MessageReader* reader);

}  // namespace pytriton
