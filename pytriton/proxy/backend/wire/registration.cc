#include "wire/registration.h"

namespace pytriton {

void Encode(const RegistrationMessage& message, MessageWriter* writer) {
  writer->Text(message.binding);
  writer->Text(message.model);
  writer->Word(message.version);
  writer->Text(message.instance);
  writer->Text(message.config);
}

AdmissionMessage DecodeAdmission(MessageReader* reader) {
  AdmissionMessage message;
  message.socket = reader->Text();
  message.ticket = reader->Word();
  message.batching = reader->Word() != 0;
  message.decoupled = reader->Word() != 0;
  const int64_t mode = reader->Word();
  if (mode < 1 || mode > 3) throw ProtocolError("an admission has an unknown execution mode");
  message.mode = static_cast<ExecutionMode>(mode);
  message.max_in_flight = reader->Word();
  message.gpus = reader->Text();
  message.inputs = reader->ReadTexts();
  message.outputs = reader->ReadTexts();
  return message;
}

}  // namespace pytriton
