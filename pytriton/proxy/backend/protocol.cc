#include "protocol.h"

#include <utility>

namespace pytriton {

namespace {

constexpr int64_t kInBatch = 2;  // of a column: it is stacked, and no part of the message
constexpr int64_t kHasRows = 1;
constexpr int64_t kFinal = 1;
constexpr int64_t kResponse = 2;
constexpr int64_t kFailed = 4;
constexpr int64_t kHasParameters = 8;

int64_t ReadRequestCount(MessageReader* reader) {
  const int64_t count = reader->Word();
  if (count < 0) throw ProtocolError("a message counts less than no requests");
  return count;
}

void WriteColumns(const std::vector<Column>& columns, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(columns.size()));
  for (const Column& column : columns) writer->WriteColumn(column);
}

std::vector<Column> ReadColumns(int64_t request_count, MessageReader* reader) {
  std::vector<Column> columns;
  const int64_t count = reader->Count(3);
  columns.reserve(count);
  for (int64_t i = 0; i < count; ++i) columns.push_back(reader->ReadColumn(request_count));
  return columns;
}

void WriteTexts(const std::vector<std::string>& texts, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(texts.size()));
  for (const std::string& text : texts) writer->Text(text);
}

std::vector<std::string> ReadTexts(MessageReader* reader) {
  std::vector<std::string> texts(reader->Count(2));
  for (std::string& text : texts) text = reader->Text();
  return texts;
}

void WriteEnvelope(const Envelope& envelope, MessageWriter* writer) {
  writer->Word(envelope.empty() ? 0 : 1);
  if (envelope.empty()) return;
  writer->Word(envelope.correlation_id);
  writer->Text(envelope.correlation_string);
  writer->Word(envelope.flags);
  writer->Word(envelope.priority);
  writer->Word(envelope.timeout_us);
  writer->Word(envelope.trace);
}

Envelope ReadEnvelope(MessageReader* reader) {
  Envelope envelope;
  if (reader->Word() == 0) return envelope;
  envelope.correlation_id = reader->Word();
  envelope.correlation_string = reader->Text();
  envelope.flags = reader->Word();
  envelope.priority = reader->Word();
  envelope.timeout_us = reader->Word();
  envelope.trace = reader->Word();
  return envelope;
}

void WriteDetails(const Details& details, MessageWriter* writer) {
  writer->Text(details.id);
  writer->Word(details.all_outputs ? -1 : static_cast<int64_t>(details.outputs.size()));
  if (!details.all_outputs) {
    for (int64_t output : details.outputs) writer->Word(output);
  }
  writer->WriteParameters(details.parameters);
  WriteEnvelope(details.envelope, writer);
}

Details ReadDetails(MessageReader* reader) {
  Details details;
  details.id = reader->Text();
  const int64_t outputs = reader->Word();
  details.all_outputs = outputs < 0;
  for (int64_t i = 0; i < outputs; ++i) details.outputs.push_back(reader->Word());
  details.parameters = reader->ReadParameters();
  details.envelope = ReadEnvelope(reader);
  return details;
}

}  // namespace

void MessageWriter::WriteColumn(const Column& column) {
  Word(column.position);
  Word(column.datatype);
  Word(column.in_batch ? kInBatch : column.stacked ? 1 : 0);
  for (const Tensor& tensor : column.tensors) WriteTensor(tensor);
}

void MessageWriter::WriteTensor(const Tensor& tensor) {
  Word(tensor.offset);
  Word(tensor.size);
  Word(static_cast<int64_t>(tensor.shape.size()));
  for (int64_t dim : tensor.shape) Word(dim);
}

void MessageWriter::WriteParameters(const std::vector<Parameter>& parameters) {
  Word(static_cast<int64_t>(parameters.size()));
  for (const Parameter& parameter : parameters) {
    Text(parameter.key);
    Word(static_cast<int64_t>(parameter.type));
    if (parameter.type == ParameterType::kString) {
      Text(parameter.text);
    } else {
      Word(parameter.number);
    }
  }
}

void MessageWriter::CopyTo(char* target) {
  const size_t words_size = words_.size() * 8;
  words_[0] = static_cast<int64_t>(words_size);
  words_[1] = head_size();
  std::memcpy(target, words_.data(), words_size);
  std::memcpy(target + words_size, heap_.data(), heap_.size());
}

MessageReader::MessageReader(const char* message, int64_t size) : message_(message), size_(size) {
  word_count_ = size / 8;
  heap_offset_ = Word();
  data_offset_ = Word();
  if (heap_offset_ < 16 || heap_offset_ > data_offset_ || data_offset_ > size) {
    throw ProtocolError("a message says that its parts lie outside of it");
  }
  word_count_ = heap_offset_ / 8;
}

int64_t MessageReader::Word() {
  if (position_ >= word_count_) throw ProtocolError("a message ends too early");
  int64_t value;
  std::memcpy(&value, message_ + position_ * 8, sizeof(value));
  ++position_;
  return value;
}

int64_t MessageReader::Count(int64_t words) {
  const int64_t count = Word();
  if (count < 0 || count > (word_count_ - position_) / words) {
    throw ProtocolError("a message counts more than it holds");
  }
  return count;
}

std::string_view MessageReader::Text() {
  const int64_t offset = Word();
  const int64_t size = Word();
  const int64_t heap_size = data_offset_ - heap_offset_;
  if (offset < 0 || size < 0 || offset > heap_size || size > heap_size - offset) {
    throw ProtocolError("a text lies outside of its message");
  }
  return {message_ + heap_offset_ + offset, static_cast<size_t>(size)};
}

Column MessageReader::ReadColumn(int64_t request_count) {
  Column column;
  column.position = Word();
  column.datatype = Word();
  const int64_t place = Word();
  column.stacked = place != 0;
  column.in_batch = place == kInBatch;
  const int64_t tensors = column.stacked ? 1 : request_count;
  if (tensors > (word_count_ - position_) / 3) throw ProtocolError("a message counts more than it holds");
  column.tensors.reserve(tensors);
  for (int64_t i = 0; i < tensors; ++i) column.tensors.push_back(ReadTensor(!column.in_batch));
  return column;
}

Tensor MessageReader::ReadTensor(bool is_part) {
  Tensor tensor;
  tensor.offset = Word();
  tensor.size = Word();
  tensor.shape.resize(Count());
  for (int64_t& dim : tensor.shape) dim = Word();
  const int64_t room = size_ - data_offset_;
  if (is_part && tensor.offset >= 0 &&
      (tensor.size < 0 || tensor.offset > room || tensor.size > room - tensor.offset)) {
    throw ProtocolError("a tensor lies outside of its message");
  }
  return tensor;
}

std::vector<Parameter> MessageReader::ReadParameters() {
  std::vector<Parameter> parameters(Count(4));
  for (Parameter& parameter : parameters) {
    parameter.key = Text();
    parameter.type = static_cast<ParameterType>(Word());
    if (parameter.type == ParameterType::kString) {
      parameter.text = Text();
    } else {
      parameter.number = Word();
    }
  }
  return parameters;
}

void Encode(const BatchMessage& message, MessageWriter* writer) {
  const int64_t details_start = writer->word_count();
  writer->Word(0);
  writer->Word(message.request_count);
  writer->Word(message.rows.empty() ? 0 : kHasRows);
  for (int64_t rows : message.rows) writer->Word(rows);
  WriteColumns(message.columns, writer);
  if (!message.details.empty()) writer->SetWord(details_start, writer->word_count());
  for (const Details& details : message.details) WriteDetails(details, writer);
}

BatchMessage DecodeBatch(MessageReader* reader) {
  BatchMessage message;
  const int64_t details_start = reader->Word();
  message.request_count = ReadRequestCount(reader);
  const int64_t flags = reader->Word();
  if (flags & kHasRows) {
    for (int64_t i = 0; i < message.request_count; ++i) message.rows.push_back(reader->Word());
  }
  message.columns = ReadColumns(message.request_count, reader);
  if (details_start != 0) {
    if (details_start != reader->position()) throw ProtocolError("a batch has details elsewhere than it says");
    for (int64_t i = 0; i < message.request_count; ++i) message.details.push_back(ReadDetails(reader));
  }
  return message;
}

void Encode(const ResultMessage& message, MessageWriter* writer) {
  writer->Word(message.request_count);
  writer->Word(message.compute_start_ns);
  writer->Word(message.compute_end_ns);
  writer->Word(static_cast<int64_t>(message.failures.size()));
  for (const Failure& failure : message.failures) {
    writer->Word(failure.request);
    writer->Word(failure.code);
    writer->Text(failure.message);
    writer->Text(failure.detail);
  }
  writer->Word(static_cast<int64_t>(message.parameters.size()));
  for (const ResponseParameters& each : message.parameters) {
    writer->Word(each.request);
    writer->WriteParameters(each.parameters);
  }
  WriteColumns(message.columns, writer);
}

ResultMessage DecodeResult(MessageReader* reader) {
  ResultMessage message;
  message.request_count = ReadRequestCount(reader);
  message.compute_start_ns = reader->Word();
  message.compute_end_ns = reader->Word();
  message.failures.resize(reader->Count(6));
  for (Failure& failure : message.failures) {
    failure.request = reader->Word();
    failure.code = reader->Word();
    failure.message = reader->Text();
    failure.detail = reader->Text();
  }
  message.parameters.resize(reader->Count(2));
  for (ResponseParameters& each : message.parameters) {
    each.request = reader->Word();
    each.parameters = reader->ReadParameters();
  }
  message.columns = ReadColumns(message.request_count, reader);
  return message;
}

void Encode(const AnswersMessage& message, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(message.answers.size()));
  for (const Answer& answer : message.answers) {
    writer->Word(answer.sequence);
    writer->Word(answer.request);
    writer->Word((answer.final ? kFinal : 0) | (answer.response ? kResponse : 0) | (answer.failed ? kFailed : 0) |
                 (answer.parameters.empty() ? 0 : kHasParameters));
    writer->Word(answer.compute_start_ns);
    writer->Word(answer.compute_end_ns);
    if (answer.failed) {
      writer->Word(answer.code);
      writer->Text(answer.message);
      writer->Text(answer.detail);
    }
    if (!answer.parameters.empty()) writer->WriteParameters(answer.parameters);
    writer->Word(static_cast<int64_t>(answer.outputs.size()));
    for (const AnswerOutput& output : answer.outputs) {
      writer->Word(output.position);
      writer->Word(output.datatype);
      writer->WriteTensor(output.tensor);
    }
  }
}

AnswersMessage DecodeAnswers(MessageReader* reader) {
  AnswersMessage message;
  message.answers.resize(reader->Count(6));
  for (Answer& answer : message.answers) {
    answer.sequence = reader->Word();
    answer.request = reader->Word();
    const int64_t flags = reader->Word();
    answer.final = (flags & kFinal) != 0;
    answer.response = (flags & kResponse) != 0;
    answer.failed = (flags & kFailed) != 0;
    answer.compute_start_ns = reader->Word();
    answer.compute_end_ns = reader->Word();
    if (answer.failed) {
      answer.code = reader->Word();
      answer.message = reader->Text();
      answer.detail = reader->Text();
    }
    if (flags & kHasParameters) answer.parameters = reader->ReadParameters();
    answer.outputs.resize(reader->Count(5));
    for (AnswerOutput& output : answer.outputs) {
      output.position = reader->Word();
      output.datatype = reader->Word();
      output.tensor = reader->ReadTensor();
    }
  }
  return message;
}

void Encode(const RegistrationMessage& message, MessageWriter* writer) {
  writer->Text(message.binding);
  writer->Text(message.model);
  writer->Word(message.version);
  writer->Text(message.instance);
  writer->Text(message.config);
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
  writer->Word(message.in_flight);
  WriteTexts(message.inputs, writer);
  WriteTexts(message.outputs, writer);
  writer->Word(message.in_turn ? 1 : 0);
}

AdmissionMessage DecodeAdmission(MessageReader* reader) {
  AdmissionMessage message;
  message.socket = reader->Text();
  message.ticket = reader->Word();
  message.batching = reader->Word() != 0;
  message.decoupled = reader->Word() != 0;
  message.in_flight = reader->Word();
  message.inputs = ReadTexts(reader);
  message.outputs = ReadTexts(reader);
  message.in_turn = reader->Word() != 0;
  return message;
}

}  // namespace pytriton
