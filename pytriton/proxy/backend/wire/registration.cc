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
  writer->Word(message.in_flight);
  writer->WriteTexts(message.inputs);
  writer->WriteTexts(message.outputs);
  writer->Word(message.in_turn ? 1 : 0);
}

AdmissionMessage DecodeAdmission(MessageReader* reader) {
  AdmissionMessage message;
  message.socket = reader->Text();
  message.ticket = reader->Word();
  message.batching = reader->Word() != 0;
  message.decoupled = reader->Word() != 0;
  message.in_flight = reader->Word();
  message.inputs = reader->ReadTexts();
  message.outputs = reader->ReadTexts();
  message.in_turn = reader->Word() != 0;
  return message;
}

}  // namespace pytriton
