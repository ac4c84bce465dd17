#include "wire/control.h"

namespace pytriton {

void Encode(const CommandMessage& message, MessageWriter* writer) {
  writer->Word(static_cast<int64_t>(message.command));
  writer->Text(message.folder);
  writer->Text(message.model);
  writer->Word(message.version);
  writer->Text(message.instance);
  writer->Text(message.config);
  writer->Text(message.repository);
  writer->Text(message.backend);
  writer->Text(message.instance_kind);
  writer->Text(message.device_id);
}

CommandReply DecodeReply(const std::string& frame) {
  const auto size = static_cast<int64_t>(frame.size());
  MessageReader reader(frame.data(), size);
  CommandReply message;
  message.error = reader.Text();
  message.detail = reader.Text();
  message.config = reader.Text();
  if (reader.data_offset() < size) {
    MessageReader admission(frame.data() + reader.data_offset(), size - reader.data_offset());
    message.admission = DecodeAdmission(&admission);
  }
  return message;
}

}  // namespace pytriton
