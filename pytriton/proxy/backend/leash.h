// What a worker process and its owner tell each other. Twin of `leash.py`.
//
// The owner starts the process, and holds it by a stream socket that is there for as long as both are. On it, the owner
// asks and the process answers, one at a time. A frame is its size (64 bits, little-endian), then a message.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "arena.h"
#include "protocol.h"

namespace pytriton {

class LeashError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What the owner wants: kComplete has `config` completed; kLoad makes the inference callable; kAdmit asks for an
// admission of one model instance; kStop has the process end in order; kReady asks the model whether it can infer.
enum class Order : int64_t { kComplete = 1, kLoad = 2, kAdmit = 3, kStop = 4, kReady = 5 };

// In place of the configuration, after kLoad: the model wants to be asked whether it can infer.
constexpr char kAsksReady[] = "is_ready";

// Owner to process. All fields behind the first are for kComplete and kLoad alone.
struct OrderMessage {
  Order order = Order::kStop;
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
struct ReplyMessage {
  std::string error;           // why the order failed, in one sentence; empty where it has not
  std::string detail;          // the traceback of that, or nothing
  std::string config;          // the completed configuration, as JSON; after kComplete
  AdmissionMessage admission;  // after kAdmit
};

void Encode(const OrderMessage& message, MessageWriter* writer);
ReplyMessage DecodeReply(const std::string& frame);

// The owner's end of the socket.
class Leash {
 public:
  // Makes both ends; the process is to get `other`.
  explicit Leash(FileDescriptor* other);

  // Sends a frame and waits for the one that answers it. Calls `waiting` now and then while it does, which may throw.
  // Throws LeashError when the process is gone.
  std::string Ask(const OrderMessage& order, const std::function<void()>& waiting);

 private:
  void Wait(short events, const std::function<void()>& waiting);
  void Put(const char* data, size_t size, const std::function<void()>& waiting);
  void Take(char* data, size_t size, const std::function<void()>& waiting);

  FileDescriptor socket_;
};

}  // namespace pytriton
