#include "wire/inference.h"

#include <algorithm>

namespace pytriton {

namespace {

constexpr int64_t kHasRows = 1;
constexpr int64_t kFinal = 1;
constexpr int64_t kResponse = 2;
constexpr int64_t kFailed = 4;
constexpr int64_t kHasParameters = 8;

int64_t ReadRequestCount(MessageReader* reader) {
  const int64_t count = reader->Word();
  if (count < 0) throw ProtocolError("a message has a negative number of requests");
  return count;
}

void WriteOptions(const RequestOptions& options, MessageWriter* writer) {
  writer->Word(options.empty() ? 0 : 1);
  if (options.empty()) return;
  writer->Word(options.correlation_id);
  writer->Text(options.correlation_string);
  for (const auto number : RequestOptions::Numbers()) writer->Word(options.*number);
}

RequestOptions ReadOptions(MessageReader* reader) {
  RequestOptions options;
  if (reader->Word() == 0) return options;
  options.correlation_id = reader->Word();
  options.correlation_string = reader->Text();
  for (const auto number : RequestOptions::Numbers()) options.*number = reader->Word();
  return options;
}

void WriteMetadata(const RequestMetadata& metadata, MessageWriter* writer) {
  writer->Text(metadata.id);
  writer->Word(metadata.all_outputs ? -1 : static_cast<int64_t>(metadata.outputs.size()));
  if (!metadata.all_outputs) {
    for (int64_t output : metadata.outputs) writer->Word(output);
  }
  writer->WriteParameters(metadata.parameters);
  WriteOptions(metadata.options, writer);
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

}  // namespace

const std::array<int64_t RequestOptions::*, 4>& RequestOptions::Numbers() {
  static constexpr std::array<int64_t RequestOptions::*, 4> kNumbers = {
      &RequestOptions::flags, &RequestOptions::priority, &RequestOptions::timeout_us, &RequestOptions::trace};
  return kNumbers;
}

bool RequestOptions::operator==(const RequestOptions& other) const {
  return correlation_id == other.correlation_id && correlation_string == other.correlation_string &&
         std::all_of(Numbers().begin(), Numbers().end(),
                     [&](const auto number) { return this->*number == other.*number; });
}

bool RequestOptions::empty() const { return *this == RequestOptions(); }

void Encode(const BatchMessage& message, MessageWriter* writer) {
  const int64_t metadata_start = writer->word_count();
  writer->Word(0);
  writer->Word(message.request_count);
  writer->Word(message.rows.empty() ? 0 : kHasRows);
  for (int64_t rows : message.rows) writer->Word(rows);
  writer->WriteColumns(message.columns);
  if (!message.metadata.empty()) writer->SetWord(metadata_start, writer->word_count());
  for (const RequestMetadata& metadata : message.metadata) WriteMetadata(metadata, writer);
}

BatchMessage DecodeBatch(MessageReader* reader) {
  BatchMessage message;
  const int64_t metadata_start = reader->Word();
  message.request_count = ReadRequestCount(reader);
  const int64_t flags = reader->Word();
  if (flags & kHasRows) {
    for (int64_t i = 0; i < message.request_count; ++i) message.rows.push_back(reader->Word());
  }
  message.columns = reader->ReadColumns(message.request_count);
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
    writer->Word(failure.code);
    writer->Text(failure.message);
    writer->Text(failure.detail);
  }
  writer->Word(static_cast<int64_t>(message.parameters.size()));
  for (const ResponseParameters& each : message.parameters) {
    writer->Word(each.request);
    writer->WriteParameters(each.parameters);
  }
  writer->WriteColumns(message.columns);
}

ResultMessage DecodeResult(MessageReader* reader) {
  ResultMessage message;
  message.request_count = ReadRequestCount(reader);
  message.compute_start_ns = reader->Word();
  message.compute_end_ns = reader->Word();
  message.failures.resize(reader->Count(6));
  for (RequestFailure& failure : message.failures) {
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
  message.columns = reader->ReadColumns(message.request_count);
  return message;
}

void Encode(const ResponsesMessage& message, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(message.responses.size()));
  for (const ResponseEntry& answer : message.responses) {
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
    for (const ResponseOutput& output : answer.outputs) {
      writer->Word(output.position);
      writer->Word(output.datatype);
      writer->WriteTensor(output.tensor);
    }
  }
}

ResponsesMessage DecodeResponses(MessageReader* reader) {
  ResponsesMessage message;
  message.responses.resize(reader->Count(6));
  for (ResponseEntry& answer : message.responses) {
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
    for (ResponseOutput& output : answer.outputs) {
      output.position = reader->Word();
      output.datatype = reader->Word();
      output.tensor = reader->ReadTensor();
    }
  }
  return message;
}

}  // namespace pytriton
