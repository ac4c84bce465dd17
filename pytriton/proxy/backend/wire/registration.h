// Messages by which a model instance finds its worker. Twin of `wire/registration.py`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/encoding.h"

namespace pytriton {

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

void Encode(const RegistrationMessage& message, MessageWriter* writer);
void Encode(const AdmissionMessage& message, MessageWriter* writer);
RegistrationMessage DecodeRegistration(MessageReader* reader);
AdmissionMessage DecodeAdmission(MessageReader* reader);

}  // namespace pytriton
