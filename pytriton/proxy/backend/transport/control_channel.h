// The control channel between a worker process and its supervisor. Counterpart of `transport/control_channel.py`.
//
// It is a stream socket that exists as long as both processes do. The supervisor sends commands and the process
// replies, one at a time. A frame is its size (64 bits, little-endian) followed by a message of wire/control.h.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "base/file_descriptor.h"
#include "wire/control.h"

namespace pytriton {

class ControlChannelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The supervisor's end of the socket.
class ControlChannel {
 public:
  // Creates both ends; `other` is for the process.
  explicit ControlChannel(FileDescriptor* other);

  // Sends a command and waits for the reply. Meanwhile calls `waiting` occasionally, which may throw. Throws
  // ControlChannelError if the process has exited.
  std::string Call(const CommandMessage& command, const std::function<void()>& waiting);

 private:
  void Wait(short events, const std::function<void()>& waiting);
  void WriteAll(const char* data, size_t size, const std::function<void()>& waiting);
  void ReadAll(char* data, size_t size, const std::function<void()>& waiting);

  FileDescriptor socket_;
};

}  // namespace pytriton
