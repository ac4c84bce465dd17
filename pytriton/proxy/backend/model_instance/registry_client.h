// Asking the controller's registry, over ZeroMQ, which worker serves a model instance. Twin of `registry.py`.
//
// Request (REQ): "pytriton", the protocol's version as text, a RegistrationMessage.
// Reply (REP): "admitted", an AdmissionMessage, and where the worker has a process of its own, how often that was
// started again, as text; or "waiting", the reason as text: that process is being started again; or "refused", the
// reason as text.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "wire/notification.h"
#include "wire/registration.h"

namespace pytriton {

class RegistrationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What the controller leaves in the model's version folder, in a file named `worker`: one `key=value` per line.
struct WorkerFile {
  std::string registry;         // ZeroMQ endpoint
  std::string binding;          // which of the controller's bindings the model is
  std::string cached_output{};  // one of its outputs, where Triton caches its responses; else empty
  int warmups = 0;              // batches that Triton warms each instance up with

  // Throws RegistrationError when the file is missing or lacks a key.
  static WorkerFile Read(const std::string& path);
};

// What the registry answers.
struct RegistrationReply {
  std::optional<AdmissionMessage> admission;  // who serves the instance; empty where it is to ask again
  std::string reason;                         // why it is to ask again
  std::optional<int64_t> restart_counter;     // of the worker's process, where it has one of its own
};

// Throws RegistrationError when the registry refuses or does not answer.
RegistrationReply Register(const std::string& registry, const RegistrationMessage& registration, int timeout_ms);

}  // namespace pytriton
