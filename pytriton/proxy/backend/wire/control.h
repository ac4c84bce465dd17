// Messages of the control channel between a worker process and its supervisor. Counterpart of `wire/control.py`.
#pragma once

#include <cstdint>
#include <string>

#include "wire/encoding.h"
#include "wire/registration.h"

namespace pytriton {

// The commands to a worker process: kCompleteConfig completes `config`; kLoad creates the inference callable;
// kIssueTicket admits one model instance; kStop shuts the process down; kCheckReady checks whether the model can infer.
enum class Command : int64_t { kCompleteConfig = 1, kLoad = 2, kIssueTicket = 3, kStop = 4, kCheckReady = 5 };

// The configuration in the reply to kLoad if the model has its own readiness check.
constexpr char kHasReadinessCheck[] = "is_ready";

// A command from the supervisor to the process. Only kCompleteConfig and kLoad use the fields after the first.
struct CommandMessage {
  Command command = Command::kStop;
  std::string folder{};  // for the process's sockets; of mode 0700
  std::string model{};
  int64_t version = 0;
  std::string instance{};
  std::string config{};      // of the model, as JSON
  std::string repository{};  // the model's folder
  std::string backend{};  // the folder of the Python-based backend that serves the model; empty if it has its own code
  std::string instance_kind{};
  std::string device_id{};
};

// A reply from the process to its supervisor.
struct CommandReply {
  std::string error;           // why the command failed, in one sentence; empty if it succeeded
  std::string detail;          // the traceback of the error, if any
  std::string config;          // after kCompleteConfig: the completed configuration as JSON
  AdmissionMessage admission;  // after kIssueTicket
};

void Encode(const CommandMessage& message, MessageWriter* writer);
CommandReply DecodeReply(const std::string& frame);

}  // namespace pytriton
