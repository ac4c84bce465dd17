// Messages of the control channel between a worker process and its supervisor. Twin of `wire/control.py`.
#pragma once

#include <cstdint>
#include <string>

#include "wire/encoding.h"
#include "wire/registration.h"

namespace pytriton {

// What the owner wants: kComplete has `config` completed; kLoad makes the inference callable; kAdmit asks for an
// admission of one model instance; kStop has the process end in order; kReady asks the model whether it can infer.
enum class Command : int64_t { kCompleteConfig = 1, kLoad = 2, kIssueTicket = 3, kStop = 4, kCheckReady = 5 };

// In place of the configuration, after kLoad: the model wants to be asked whether it can infer.
constexpr char kHasReadinessCheck[] = "is_ready";

// Owner to process. All fields behind the first are for kComplete and kLoad alone.
struct CommandMessage {
  Command command = Command::kStop;
  std::string folder{};  // for the process's sockets; of mode 0700
  std::string model{};
  int64_t version = 0;
  std::string instance{};
  std::string config{};      // of the model, as JSON
  std::string repository{};  // the model's folder
  std::string instance_kind{};
  std::string device_id{};
};

// Process to owner.
struct CommandReply {
  std::string error;           // why the order failed, in one sentence; empty where it has not
  std::string detail;          // the traceback of that, or nothing
  std::string config;          // the completed configuration, as JSON; after kComplete
  AdmissionMessage admission;  // after kAdmit
};

void Encode(const CommandMessage& message, MessageWriter* writer);
CommandReply DecodeReply(const std::string& frame);

}  // namespace pytriton
