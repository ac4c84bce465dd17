// The layout of what workers ask of the server, and of what it replies. Twin of `calls.py`; told in docs/wire.md.
//
// Bells and messages have the shape that protocol.h gives them, and go over a socket of their own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/encoding.h"

namespace pytriton {

// The sequence is the number of what is asked, from 1, which the worker chooses; 0 where there is no reply.
enum class ServiceNotification : int64_t {
  kOpen = 1,    // worker: its arena, and in `offset` the protocol's version
  kOpened = 2,  // backend: its arena
  kInfer = 3,   // worker: a InferenceCallMessage
  kCancel = 4,  // worker: nobody wants more replies to the call
  kLog = 5,     // worker: a LogMessage
  kModel = 6,   // worker: a ModelMessage
  kMetric = 7,  // worker: a MetricMessage
  kReply = 8,   // backend: a InferenceReplyMessage; of size 0 where there was no room for it
  kDone = 9,    // backend: in `offset`, the result of a kModel or kMetric
};

struct InferenceCallInput {
  std::string name;
  int64_t datatype = 0;
  TensorLocation tensor;  // BYTES as Triton has them: each element behind its length

  bool operator==(const InferenceCallInput& other) const {
    return name == other.name && datatype == other.datatype && tensor == other.tensor;
  }
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
  std::string correlation_text;  // in place of the number, unless it is empty
  int64_t batch = -1;            // for which the callable is called that asks; -1 unknown, 0 the only one
  bool all_outputs = true;
  std::vector<std::string> outputs;
  std::vector<Parameter> parameters;
  std::vector<InferenceCallInput> inputs;
};

// One output of a reply, in a block of its own: `offset` is that in the arena, -1 where there is no data.
struct InferenceReplyOutput {
  std::string name;
  int64_t datatype = 0;
  int64_t offset = -1;
  int64_t size = 0;
  std::vector<int64_t> shape;

  bool operator==(const InferenceReplyOutput& other) const {
    return name == other.name && datatype == other.datatype && offset == other.offset && size == other.size &&
           shape == other.shape;
  }
};

// Backend to worker: a response, an error, the end, or several of these.
struct InferenceReplyMessage {
  bool final = false;
  bool response = false;
  bool failed = false;
  int64_t code = 0;     // where it has failed: a TRITONSERVER_Error_Code
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

// Worker to backend: something to do with a model.
struct ModelMessage {
  ModelOperation command = ModelOperation::kIsReady;
  std::string model;
  int64_t version = -1;
  std::string config;
  struct File {
    std::string path;
    int64_t offset = 0;  // in the message's data
    int64_t size = 0;

    bool operator==(const File& other) const {
      return path == other.path && offset == other.offset && size == other.size;
    }
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
  kDeleteFamily = 8
};

// Worker to backend: something to do with a metric.
struct MetricMessage {
  MetricOperation command = MetricOperation::kValue;
  int64_t number = 0;  // of the family or of the metric
  int64_t kind = 0;    // TRITONSERVER_MetricKind
  double value = 0;
  std::string name;
  std::string description;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<double> buckets;
};

void Encode(const InferenceCallMessage& message, MessageWriter* writer);
void Encode(const InferenceReplyMessage& message, MessageWriter* writer);
void Encode(const LogMessage& message, MessageWriter* writer);
void Encode(const ModelMessage& message, MessageWriter* writer);
void Encode(const MetricMessage& message, MessageWriter* writer);
InferenceCallMessage DecodeCall(MessageReader* reader);
InferenceReplyMessage DecodeReply(MessageReader* reader);
LogMessage DecodeLog(MessageReader* reader);
ModelMessage DecodeModel(MessageReader* reader, int64_t size);
MetricMessage DecodeMetric(MessageReader* reader);

}  // namespace pytriton
