// The client of the controller's registry: looks up the worker of a model instance over ZeroMQ. Counterpart of
// `registry.py`.
//
// Request (REQ): "pytriton", the protocol's version as text, a RegistrationMessage. Reply (REP): "admitted", an
// AdmissionMessage and, if the worker has its own process, the number of its restarts as text; or "waiting" and the
// reason as text, while that process is being restarted; or "failed" and the reason as text, if its last restart has
// failed; or "refused" and the reason as text.
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

// The worker's process is being restarted, or its last restart has failed, and the instance may retry.
class WorkerUnavailable : public RegistrationError {
 public:
  using RegistrationError::RegistrationError;
};

// The file `worker` that the controller writes into the model's version folder: one `key=value` per line.
struct WorkerFile {
  std::string registry{};       // ZeroMQ endpoint
  std::string binding{};        // the controller's key of the binding
  std::string controller{};     // the socket on which the controller waits for a service channel; empty if it does not
  std::string cached_output{};  // one of its outputs if Triton caches its responses; else empty

  // Throws RegistrationError if the file is missing or lacks a key.
  static WorkerFile Read(const std::string& path);
};

// The reply of the registry.
struct RegistrationReply {
  std::optional<AdmissionMessage> admission;  // the worker; empty if the instance must retry
  std::string reason;                         // why it must retry
  std::optional<int64_t> restart_count;       // of the worker's process, if it has its own
};

// Throws RegistrationError if the registry refuses or does not reply, WorkerUnavailable if the worker's process could
// not be restarted.
RegistrationReply Register(const std::string& registry, const RegistrationMessage& registration, int timeout_ms);

}  // namespace pytriton
