// The layout of what the proxy backend and its workers tell each other. Twin of `protocol.py`; told in docs/wire.md.
//
// Bells (32 bytes on a socket) say where in shared memory a message lies. A message is a run of little-endian 64-bit
// words, then a heap of strings, then tensor data; all its offsets are relative to its own parts, so it can lie
// anywhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pytriton {

// Raised whenever the layout changes; a different version on the other side is refused.
constexpr int64_t kProtocolVersion = 8;

// Tensor data starts at multiples of this, so that any vector instruction may read it.
constexpr int64_t kAlignment = 64;

enum class BellKind : int64_t {
  kHello = 1,
  kWelcome = 2,
  kBatch = 3,
  kResult = 4,
  kAnswers = 5,
  kReturned = 6,
  kHead = 7
};

// What travels on the socket. `offset` and `size` tell where the message lies in the sender's arena.
struct Bell {
  int64_t kind = 0;
  int64_t sequence = 0;  // of the batch; in kHello the ticket from the registry
  int64_t offset = 0;
  int64_t size = 0;
};
static_assert(sizeof(Bell) == 32);

constexpr int64_t Aligned(int64_t size) { return (size + kAlignment - 1) & ~(kAlignment - 1); }

class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where one tensor lies, relative to the message's data. A tensor that is absent has the offset -1.
// Elements of BYTES lie as their lengths (uint32 each), then their bytes back to back.
struct Tensor {
  int64_t offset = -1;
  int64_t size = 0;
  std::vector<int64_t> shape;

  bool operator==(const Tensor& other) const {
    return offset == other.offset && size == other.size && shape == other.shape;
  }
};

// One input or output over all requests of a batch: a single tensor when it is stacked (the requests' tensors lie back
// to back along the first dimension), else one tensor per request. A stacked output may lie in the data of the batch
// that it answers: it is part of an input.
struct Column {
  int64_t position = 0;  // of the input or output in the model's configuration
  int64_t datatype = 0;
  bool stacked = false;
  std::vector<Tensor> tensors;
  bool in_batch = false;

  bool operator==(const Column& other) const {
    return position == other.position && datatype == other.datatype && stacked == other.stacked &&
           tensors == other.tensors && in_batch == other.in_batch;
  }
};

enum class ParameterType : int64_t { kString = 0, kInt = 1, kBool = 2, kDouble = 4 };

struct Parameter {
  std::string key;
  ParameterType type = ParameterType::kString;
  std::string text;    // of a kString
  int64_t number = 0;  // of a kInt or kBool; the bits of a kDouble

  bool operator==(const Parameter& other) const {
    return key == other.key && type == other.type && text == other.text && number == other.number;
  }
};

// What a request says of how it is to be treated. Most say nothing.
struct Envelope {
  int64_t correlation_id = 0;      // of the sequence that it belongs to; the bits of an unsigned number
  std::string correlation_string;  // the same as text; one of the two is empty
  int64_t flags = 0;               // TRITONSERVER_RequestFlag
  int64_t priority = 0;
  int64_t timeout_us = 0;
  int64_t trace = 0;  // its number

  bool empty() const {
    return correlation_id == 0 && correlation_string.empty() && flags == 0 && priority == 0 && timeout_us == 0 &&
           trace == 0;
  }
  bool operator==(const Envelope& other) const {
    return correlation_id == other.correlation_id && correlation_string == other.correlation_string &&
           flags == other.flags && priority == other.priority && timeout_us == other.timeout_us && trace == other.trace;
  }
};

// What a request brings besides its tensors. Most bring nothing.
struct Details {
  std::string id;
  bool all_outputs = true;
  std::vector<int64_t> outputs;  // positions of the requested outputs, unless all are
  std::vector<Parameter> parameters;
  Envelope envelope;

  bool empty() const { return id.empty() && all_outputs && parameters.empty() && envelope.empty(); }
  bool operator==(const Details& other) const {
    return id == other.id && all_outputs == other.all_outputs && outputs == other.outputs &&
           parameters == other.parameters && envelope == other.envelope;
  }
};

// Backend to worker: requests to infer. The data starts with a byte for each request, which the backend sets to 1 when
// the request is cancelled.
struct BatchMessage {
  int64_t request_count = 0;
  std::vector<int64_t> rows;  // first dimension of each request; empty where the model does not batch
  std::vector<Column> columns;
  std::vector<Details> details;  // empty where no request has any
};

// In place of a failure's code: the request has not failed, but goes back to the server, which sends it again.
constexpr int64_t kReschedule = -1;

// A request that failed, or with `request` -1 the whole batch.
struct Failure {
  int64_t request = -1;
  int64_t code = 0;     // TRITONSERVER_Error_Code, or kReschedule
  std::string message;  // for the client
  std::string detail;   // for the server's log

  bool operator==(const Failure& other) const {
    return request == other.request && code == other.code && message == other.message && detail == other.detail;
  }
};

// The parameters of a response.
struct ResponseParameters {
  int64_t request = 0;  // in the batch
  std::vector<Parameter> parameters;

  bool operator==(const ResponseParameters& other) const {
    return request == other.request && parameters == other.parameters;
  }
};

// Worker to backend: what came of a batch, from a worker that takes one at a time.
struct ResultMessage {
  int64_t request_count = 0;
  int64_t compute_start_ns = 0;  // CLOCK_MONOTONIC, when the inference callable was called
  int64_t compute_end_ns = 0;    // and when it had returned
  std::vector<Failure> failures;
  std::vector<ResponseParameters> parameters;  // of responses that have any
  std::vector<Column> columns;
};

// One output of an answer.
struct AnswerOutput {
  int64_t position = 0;  // in the model's configuration
  int64_t datatype = 0;
  Tensor tensor;

  bool operator==(const AnswerOutput& other) const {
    return position == other.position && datatype == other.datatype && tensor == other.tensor;
  }
};

// What there is to say of one request of a batch: a response, that it has failed, that it has ended, or several of
// these.
struct Answer {
  int64_t sequence = 0;  // of the batch
  int64_t request = 0;   // in the batch
  bool final = false;    // no more answers follow
  bool response = false;
  bool failed = false;
  int64_t compute_start_ns = 0;  // CLOCK_MONOTONIC, when the inference callable was called
  int64_t compute_end_ns = 0;    // and when this was made
  int64_t code = 0;              // where it has failed: a TRITONSERVER_Error_Code, or kReschedule
  std::string message;           // for the client
  std::string detail;            // for the server's log
  std::vector<Parameter> parameters;
  std::vector<AnswerOutput> outputs;

  bool operator==(const Answer& other) const {
    return sequence == other.sequence && request == other.request && final == other.final &&
           response == other.response && failed == other.failed && compute_start_ns == other.compute_start_ns &&
           compute_end_ns == other.compute_end_ns && code == other.code && message == other.message &&
           detail == other.detail && parameters == other.parameters && outputs == other.outputs;
  }
};

// Worker to backend: what there is to say of requests of any batches, from a worker that takes many at a time.
struct AnswersMessage {
  std::vector<Answer> answers;
};

// Backend to registry: a model instance looks for its worker.
struct RegistrationMessage {
  std::string binding;  // which of the controller's bindings the model is
  std::string model;
  int64_t version = 0;
  std::string instance;
  std::string config;  // the model's configuration as JSON
};

// Registry to backend: where the worker is, and the names that positions stand for.
struct AdmissionMessage {
  std::string socket;
  int64_t ticket = 0;
  bool batching = false;
  bool decoupled = false;
  int64_t in_flight = 0;  // how many batches the worker takes at a time; 0: one, which it answers with a result
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  bool in_turn = false;  // wait with a batch until the inference callable has returned from the one before
};

// Puts words and strings together. The first two words say where the heap and the data start.
class MessageWriter {
 public:
  MessageWriter() { Clear(); }

  void Clear() {
    words_.assign(2, 0);
    heap_.clear();
  }
  void Word(int64_t value) { words_.push_back(value); }
  void SetWord(int64_t position, int64_t value) { words_[position] = value; }
  // How many words there are so far.
  int64_t word_count() const { return static_cast<int64_t>(words_.size()); }
  void Text(std::string_view text) {
    Word(static_cast<int64_t>(heap_.size()));
    Word(static_cast<int64_t>(text.size()));
    heap_.append(text);
  }
  void WriteColumn(const Column& column);
  void WriteTensor(const Tensor& tensor);
  void WriteParameters(const std::vector<Parameter>& parameters);

  // Bytes before the data; the data is meant to start right there.
  int64_t head_size() const { return Aligned(static_cast<int64_t>(words_.size() * 8 + heap_.size())); }
  void CopyTo(char* target);

 private:
  std::vector<int64_t> words_;
  std::string heap_;
};

// Takes a message apart. Every access is checked against `size`: the other side may be anything.
class MessageReader {
 public:
  MessageReader(const char* message, int64_t size);

  int64_t Word();
  // How many words lie before the next one.
  int64_t position() const { return position_; }
  // A word that counts things of at least `words` words each: what cannot fit is refused before it is allocated.
  int64_t Count(int64_t words = 1);
  std::string_view Text();
  Column ReadColumn(int64_t request_count);
  // `is_part` says whether it lies in this message, as is checked then.
  Tensor ReadTensor(bool is_part = true);
  std::vector<Parameter> ReadParameters();
  int64_t data_offset() const { return data_offset_; }

 private:
  const char* message_;
  int64_t size_;
  int64_t position_ = 0;  // in words
  int64_t word_count_ = 0;
  int64_t heap_offset_ = 0;
  int64_t data_offset_ = 0;
};

void Encode(const BatchMessage& message, MessageWriter* writer);
void Encode(const ResultMessage& message, MessageWriter* writer);
void Encode(const AnswersMessage& message, MessageWriter* writer);
void Encode(const RegistrationMessage& message, MessageWriter* writer);
void Encode(const AdmissionMessage& message, MessageWriter* writer);
BatchMessage DecodeBatch(MessageReader* reader);
ResultMessage DecodeResult(MessageReader* reader);
AnswersMessage DecodeAnswers(MessageReader* reader);
RegistrationMessage DecodeRegistration(MessageReader* reader);
AdmissionMessage DecodeAdmission(MessageReader* reader);

}  // namespace pytriton
