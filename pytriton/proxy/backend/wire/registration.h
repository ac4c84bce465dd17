// Messages by which a model instance finds its worker. Counterpart of `wire/registration.py`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/encoding.h"

namespace pytriton {

// The modes in which a worker serves batches: kSequential one at a time, each with one result; kConcurrent several at a
// time, with responses per request; kDeferred likewise, but a batch only after the inference callable has returned from
// the previous one.
enum class ExecutionMode : int64_t { kSequential = 1, kConcurrent = 2, kDeferred = 3 };

// Backend to registry: registers a model instance.
struct RegistrationMessage {
  std::string binding;  // the controller's key of the binding
  std::string model;
  int64_t version = 0;
  std::string instance;
  std::string config;  // the model's configuration as JSON
};

// Registry to backend: the worker's address, and the names of the inputs and outputs by position.
struct AdmissionMessage {
  std::string socket;
  int64_t ticket = 0;
  bool batching = false;
  bool decoupled = false;
  ExecutionMode mode = ExecutionMode::kSequential;
  int64_t max_in_flight = 1;  // batches that the worker accepts at a time
  std::string gpus;           // the ids of the GPUs in whose memory the worker accepts tensors, the preferred one first
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

void Encode(const RegistrationMessage& message, MessageWriter* writer);
AdmissionMessage DecodeAdmission(MessageReader* reader);

}  // namespace pytriton
