#include "wire/service.h"

#include <cstring>

namespace pytriton {

namespace {

double DoubleOf(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

InferenceCallMessage DecodeCall(MessageReader* reader) {
  InferenceCallMessage message;
  message.model = reader->Text();
  message.version = reader->Word();
  message.request_id = reader->Text();
  message.flags = reader->Word();
  message.priority = reader->Word();
  message.timeout_us = reader->Word();
  message.correlation_number = reader->Word();
  message.correlation_text = reader->Text();
  message.batch = reader->Word();
  message.preferred_gpu = reader->Text();
  const int64_t outputs = reader->Word();
  message.all_outputs = outputs < 0;
  for (int64_t i = 0; i < outputs; ++i) message.outputs.emplace_back(reader->Text());
  message.parameters = reader->ReadParameters();
  message.inputs.resize(reader->Count(6));
  for (InferenceCallInput& input : message.inputs) {
    input.name = reader->Text();
    input.datatype = reader->Word();
    input.tensor = IsOnDevice(input.datatype) ? reader->ReadDeviceTensor() : reader->ReadTensor();
  }
  message.trace_context = reader->Text();
  return message;
}

void Encode(const InferenceReplyMessage& message, MessageWriter* writer) {
  writer->Word((message.final ? kFinal : 0) | (message.response ? kResponse : 0) | (message.failed ? kFailed : 0));
  if (message.failed) {
    writer->Word(message.code);
    writer->Text(message.message);
  }
  if (!message.response) return;
  writer->Text(message.model);
  writer->Word(message.version);
  writer->Text(message.request_id);
  writer->WriteParameters(message.parameters);
  writer->Word(static_cast<int64_t>(message.outputs.size()));
  for (const InferenceReplyOutput& output : message.outputs) {
    writer->Text(output.name);
    writer->Word(output.datatype);
    writer->Word(output.offset);
    writer->Word(output.size);
    writer->Word(static_cast<int64_t>(output.shape.size()));
    for (int64_t dim : output.shape) writer->Word(dim);
  }
}

LogMessage DecodeLog(MessageReader* reader) {
  LogMessage message;
  message.level = reader->Word();
  message.line = reader->Word();
  message.file = reader->Text();
  message.text = reader->Text();
  return message;
}

ModelMessage DecodeModel(MessageReader* reader, int64_t size) {
  ModelMessage message;
  message.command = static_cast<ModelOperation>(reader->Word());
  message.model = reader->Text();
  message.version = reader->Word();
  message.config = reader->Text();
  message.files.resize(reader->Count(4));
  const int64_t room = size - reader->data_offset();
  for (ModelMessage::File& file : message.files) {
    file.path = reader->Text();
    file.offset = reader->Word();
    file.size = reader->Word();
    if (file.offset < 0 || file.size < 0 || file.offset > room || file.size > room - file.offset) {
      throw ProtocolError("a file lies outside its message");
    }
  }
  return message;
}

MetricMessage DecodeMetric(MessageReader* reader) {
  MetricMessage message;
  message.command = static_cast<MetricOperation>(reader->Word());
  message.number = reader->Word();
  message.kind = reader->Word();
  message.value = DoubleOf(reader->Word());
  message.name = reader->Text();
  message.description = reader->Text();
  message.labels.resize(reader->Count(4));
  for (auto& [key, value] : message.labels) {
    key = reader->Text();
    value = reader->Text();
  }
  message.buckets.resize(reader->Count());
  for (double& bucket : message.buckets) bucket = DoubleOf(reader->Word());
  message.updates.resize(reader->Count(4));
  for (MetricUpdate& update : message.updates) {
    update.number = reader->Word();
    update.operation = static_cast<MetricOperation>(reader->Word());
    update.value = DoubleOf(reader->Word());
    update.count = reader->Word();
  }
  return message;
}

}  // namespace pytriton
