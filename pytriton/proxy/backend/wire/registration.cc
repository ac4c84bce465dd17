#include "wire/registration.h"

namespace pytriton {

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
  writer->Word(static_cast<int64_t>(message.mode));
  writer->Word(message.max_in_flight);
  writer->WriteTexts(message.inputs);
  writer->WriteTexts(message.outputs);
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
  message.inputs = reader->ReadTexts();
  message.outputs = reader->ReadTexts();
  return message;
}

}  // namespace pytriton
