#include "peer_codecs.h"

#include <algorithm>
#include <cstring>

namespace pytriton {

namespace {

RequestOptions ReadOptions(MessageReader* reader) {
  RequestOptions options;
  if (reader->Word() == 0) return options;
  options.correlation_id = reader->Word();
  options.correlation_string = reader->Text();
  for (const auto number : RequestOptions::Numbers()) options.*number = reader->Word();
  options.trace_context = reader->Text();
  return options;
}

RequestMetadata ReadMetadata(MessageReader* reader) {
  RequestMetadata metadata;
  metadata.id = reader->Text();
  const int64_t outputs = reader->Word();
  metadata.all_outputs = outputs < 0;
  for (int64_t i = 0; i < outputs; ++i) metadata.outputs.push_back(reader->Word());
  metadata.parameters = reader->ReadParameters();
  metadata.options = ReadOptions(reader);
  return metadata;
}

int64_t BitsOf(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

void WriteFailure(const Failure& failure, MessageWriter* writer) {
  writer->Word(failure.code);
  writer->Text(failure.message);
  writer->Text(failure.detail);
  writer->Text(failure.error);
}

}  // namespace

BatchMessage DecodeBatch(MessageReader* reader) {
  BatchMessage message;
  const int64_t metadata_start = reader->Word();
  message.request_count = reader->Word();
  if (message.request_count < 0) throw ProtocolError("a message has a negative number of requests");
  const int64_t flags = reader->Word();
  if (flags & kHasRows) {
    for (int64_t i = 0; i < message.request_count; ++i) message.rows.push_back(reader->Word());
  }
  message.columns = reader->ReadColumns(message.request_count);
  message.wants_gpu = (flags & kWantsGpu) != 0;
  if (metadata_start != 0) {
    if (metadata_start != reader->position()) throw ProtocolError("a batch's metadata is not where the batch says");
    for (int64_t i = 0; i < message.request_count; ++i) message.metadata.push_back(ReadMetadata(reader));
  }
  return message;
}

void Encode(const ResultMessage& message, MessageWriter* writer) {
  writer->Word(message.request_count);
  writer->Word(message.compute_start_ns);
  writer->Word(message.compute_end_ns);
  writer->Word(static_cast<int64_t>(message.failures.size()));
  for (const RequestFailure& failure : message.failures) {
    writer->Word(failure.request);
    WriteFailure(failure.failure, writer);
  }
  writer->Word(static_cast<int64_t>(message.parameters.size()));
  for (const ResponseParameters& each : message.parameters) {
    writer->Word(each.request);
    writer->WriteParameters(each.parameters);
  }
  writer->WriteColumns(message.columns);
}

void Encode(const ResponsesMessage& message, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(message.responses.size()));
  for (const ResponseEntry& entry : message.responses) {
    writer->Word(entry.sequence);
    writer->Word(entry.request);
    writer->Word((entry.final ? kFinal : 0) | (entry.response ? kResponse : 0) | (entry.failure ? kFailed : 0) |
                 (entry.parameters.empty() ? 0 : kHasParameters));
    writer->Word(entry.compute_start_ns);
    writer->Word(entry.compute_end_ns);
    if (entry.failure) WriteFailure(*entry.failure, writer);
    if (!entry.parameters.empty()) writer->WriteParameters(entry.parameters);
    writer->Word(static_cast<int64_t>(entry.outputs.size()));
    for (const ResponseOutput& output : entry.outputs) {
      writer->Word(output.position);
      writer->Word(output.datatype);
      writer->WriteTensor(output.tensor);
    }
  }
}

RegistrationMessage DecodeRegistration(MessageReader* reader) {
  RegistrationMessage message;
  message.binding = reader->Text();
  message.model = reader->Text();
  message.version = reader->Word();
  message.instance = reader->Text();
  message.config = reader->Text();
  return message;
}

void Encode(const AdmissionMessage& message, MessageWriter* writer) {
  writer->Text(message.socket);
  writer->Word(message.ticket);
  writer->Word(message.batching ? 1 : 0);
  writer->Word(message.decoupled ? 1 : 0);
  writer->Word(static_cast<int64_t>(message.mode));
  writer->Word(message.max_in_flight);
  writer->Text(message.gpus);
  writer->WriteTexts(message.inputs);
  writer->WriteTexts(message.outputs);
}

void Encode(const InferenceCallMessage& message, MessageWriter* writer) {
  writer->Text(message.model);
  writer->Word(message.version);
  writer->Text(message.request_id);
  for (int64_t word : {message.flags, message.priority, message.timeout_us, message.correlation_number}) {
    writer->Word(word);
  }
  writer->Text(message.correlation_text);
  writer->Word(message.batch);
  writer->Text(message.preferred_gpu);
  writer->Word(message.all_outputs ? -1 : static_cast<int64_t>(message.outputs.size()));
  if (!message.all_outputs) {
    for (const std::string& output : message.outputs) writer->Text(output);
  }
  writer->WriteParameters(message.parameters);
  writer->Word(static_cast<int64_t>(message.inputs.size()));
  for (const InferenceCallInput& input : message.inputs) {
    writer->Text(input.name);
    writer->Word(input.datatype);
    writer->WriteTensor(input.tensor);
  }
  writer->Text(message.trace_context);
}

InferenceReplyMessage DecodeReply(MessageReader* reader) {
  InferenceReplyMessage message;
  const int64_t flags = reader->Word();
  message.final = (flags & kFinal) != 0;
  message.response = (flags & kResponse) != 0;
  message.failed = (flags & kFailed) != 0;
  if (message.failed) {
    message.code = reader->Word();
    message.message = reader->Text();
  }
  if (!message.response) return message;
  message.model = reader->Text();
  message.version = reader->Word();
  message.request_id = reader->Text();
  message.parameters = reader->ReadParameters();
  message.outputs.resize(reader->Count(6));
  for (InferenceReplyOutput& output : message.outputs) {
    output.name = reader->Text();
    output.datatype = reader->Word();
    output.offset = reader->Word();
    output.size = reader->Word();
    output.shape.resize(reader->Count());
    for (int64_t& dim : output.shape) dim = reader->Word();
  }
  return message;
}

void Encode(const LogMessage& message, MessageWriter* writer) {
  writer->Word(message.level);
  writer->Word(message.line);
  writer->Text(message.file);
  writer->Text(message.text);
}

void Encode(const ModelMessage& message, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(message.command));
  writer->Text(message.model);
  writer->Word(message.version);
  writer->Text(message.config);
  writer->Word(static_cast<int64_t>(message.files.size()));
  for (const ModelMessage::File& file : message.files) {
    writer->Text(file.path);
    writer->Word(file.offset);
    writer->Word(file.size);
  }
}

void Encode(const MetricMessage& message, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(message.command));
  writer->Word(message.number);
  writer->Word(message.kind);
  writer->Word(BitsOf(message.value));
  writer->Text(message.name);
  writer->Text(message.description);
  writer->Word(static_cast<int64_t>(message.labels.size()));
  for (const auto& [key, value] : message.labels) {
    writer->Text(key);
    writer->Text(value);
  }
  writer->Word(static_cast<int64_t>(message.buckets.size()));
  for (double bucket : message.buckets) writer->Word(BitsOf(bucket));
  writer->Word(static_cast<int64_t>(message.updates.size()));
  for (const MetricUpdate& update : message.updates) {
    writer->Word(update.number);
    writer->Word(static_cast<int64_t>(update.operation));
    writer->Word(BitsOf(update.value));
    writer->Word(update.count);
  }
}

bool operator==(const RequestOptions& a, const RequestOptions& b) {
  return a.correlation_id == b.correlation_id && a.correlation_string == b.correlation_string &&
         a.trace_context == b.trace_context &&
         std::all_of(RequestOptions::Numbers().begin(), RequestOptions::Numbers().end(),
                     [&](const auto number) { return a.*number == b.*number; });
}

bool operator==(const RequestMetadata& a, const RequestMetadata& b) {
  return a.id == b.id && a.all_outputs == b.all_outputs && a.outputs == b.outputs && a.parameters == b.parameters &&
         a.options == b.options;
}

bool operator==(const Failure& a, const Failure& b) {
  return a.code == b.code && a.message == b.message && a.detail == b.detail && a.error == b.error;
}

bool operator==(const RequestFailure& a, const RequestFailure& b) {
  return a.request == b.request && a.failure == b.failure;
}

bool operator==(const ResponseParameters& a, const ResponseParameters& b) {
  return a.request == b.request && a.parameters == b.parameters;
}

bool operator==(const ResponseOutput& a, const ResponseOutput& b) {
  return a.position == b.position && a.datatype == b.datatype && a.tensor == b.tensor;
}

bool operator==(const ResponseEntry& a, const ResponseEntry& b) {
  return a.sequence == b.sequence && a.request == b.request && a.final == b.final && a.response == b.response &&
         a.compute_start_ns == b.compute_start_ns && a.compute_end_ns == b.compute_end_ns && a.failure == b.failure &&
         a.parameters == b.parameters && a.outputs == b.outputs;
}

bool operator==(const InferenceCallInput& a, const InferenceCallInput& b) {
  return a.name == b.name && a.datatype == b.datatype && a.tensor == b.tensor;
}

bool operator==(const MetricUpdate& a, const MetricUpdate& b) {
  return a.number == b.number && a.operation == b.operation && a.value == b.value && a.count == b.count;
}

bool operator==(const InferenceReplyOutput& a, const InferenceReplyOutput& b) {
  return a.name == b.name && a.datatype == b.datatype && a.offset == b.offset && a.size == b.size && a.shape == b.shape;
}

bool operator==(const ModelMessage::File& a, const ModelMessage::File& b) {
  return a.path == b.path && a.offset == b.offset && a.size == b.size;
}

bool operator==(const TensorLocation& a, const TensorLocation& b) {
  return a.offset == b.offset && a.size == b.size && a.shape == b.shape;
}

bool operator==(const TensorColumn& a, const TensorColumn& b) {
  return a.position == b.position && a.datatype == b.datatype && a.place == b.place && a.tensors == b.tensors;
}

bool operator==(const Parameter& a, const Parameter& b) {
  return a.key == b.key && a.type == b.type && a.text == b.text && a.number == b.number;
}

}  // namespace pytriton
