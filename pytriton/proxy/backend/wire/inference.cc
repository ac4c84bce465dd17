#include "wire/inference.h"

#include <algorithm>

namespace pytriton {

namespace {

int64_t ReadRequestCount(MessageReader* reader) {
  const int64_t count = reader->Word();
  if (count < 0) throw ProtocolError("a message has a negative number of requests");
  return count;
}

Failure ReadFailure(MessageReader* reader) {
  Failure failure;
  failure.code = reader->Word();
  failure.message = reader->Text();
  failure.detail = reader->Text();
  failure.error = reader->Text();
  return failure;
}

void WriteOptions(const RequestOptions& options, MessageWriter* writer) {
  writer->Word(options.empty() ? 0 : 1);
  if (options.empty()) return;
  writer->Word(options.correlation_id);
  writer->Text(options.correlation_string);
  for (const auto number : RequestOptions::Numbers()) writer->Word(options.*number);
  writer->Text(options.trace_context);
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

}  // namespace

const std::array<int64_t RequestOptions::*, 4>& RequestOptions::Numbers() {
  static constexpr std::array<int64_t RequestOptions::*, 4> kNumbers = {
      &RequestOptions::flags, &RequestOptions::priority, &RequestOptions::timeout_us, &RequestOptions::trace};
  return kNumbers;
}

bool RequestOptions::empty() const {
  return correlation_id == 0 && correlation_string.empty() && trace_context.empty() &&
         std::all_of(Numbers().begin(), Numbers().end(), [&](const auto number) { return this->*number == 0; });
}

void Encode(const BatchMessage& message, MessageWriter* writer) {
  const int64_t metadata_start = writer->word_count();
  writer->Word(0);
  writer->Word(message.request_count);
  const bool is_traced = std::any_of(message.metadata.begin(), message.metadata.end(),
                                     [](const auto& metadata) { return !metadata.options.trace_context.empty(); });
  writer->Word((message.rows.empty() ? 0 : kHasRows) | (is_traced ? kIsTraced : 0) |
               (message.wants_gpu ? kWantsGpu : 0));
  for (int64_t rows : message.rows) writer->Word(rows);
  writer->WriteColumns(message.columns);
  if (!message.metadata.empty()) writer->SetWord(metadata_start, writer->word_count());
  for (const RequestMetadata& metadata : message.metadata) WriteMetadata(metadata, writer);
}

ResultMessage DecodeResult(MessageReader* reader) {
  ResultMessage message;
  message.request_count = ReadRequestCount(reader);
  message.compute_start_ns = reader->Word();
  message.compute_end_ns = reader->Word();
  message.failures.resize(reader->Count(8));
  for (RequestFailure& failure : message.failures) {
    failure.request = reader->Word();
    failure.failure = ReadFailure(reader);
  }
  message.parameters.resize(reader->Count(2));
  for (ResponseParameters& each : message.parameters) {
    each.request = reader->Word();
    each.parameters = reader->ReadParameters();
  }
  message.columns = reader->ReadColumns(message.request_count);
  return message;
}

ResponsesMessage DecodeResponses(MessageReader* reader) {
  ResponsesMessage message;
  message.responses.resize(reader->Count(6));
  for (ResponseEntry& entry : message.responses) {
    entry.sequence = reader->Word();
    entry.request = reader->Word();
    const int64_t flags = reader->Word();
    entry.final = (flags & kFinal) != 0;
    entry.response = (flags & kResponse) != 0;
    entry.compute_start_ns = reader->Word();
    entry.compute_end_ns = reader->Word();
    if ((flags & kFailed) != 0) entry.failure = ReadFailure(reader);
    if (flags & kHasParameters) entry.parameters = reader->ReadParameters();
    entry.outputs.resize(reader->Count(5));
    for (ResponseOutput& output : entry.outputs) {
      output.position = reader->Word();
      output.datatype = reader->Word();
      output.tensor = reader->ReadTensor();
    }
  }
  return message;
}

}  // namespace pytriton
