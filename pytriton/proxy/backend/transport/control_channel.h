// What a worker process and its owner tell each other. Twin of `control.py`.
//
// The owner starts the process, and holds it by a stream socket that is there for as long as both are. On it, the owner
// asks and the process answers, one at a time. A frame is its size (64 bits, little-endian), then a message.
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

// The owner's end of the socket.
class ControlChannel {
 public:
  // Makes both ends; the process is to get `other`.
  explicit ControlChannel(FileDescriptor* other);

  // Sends a frame and waits for the one that answers it. Calls `waiting` now and then while it does, which may throw.
  // Throws ControlChannelError when the process is gone.
  std::string Ask(const CommandMessage& command, const std::function<void()>& waiting);

 private:
  void Wait(short events, const std::function<void()>& waiting);
  void Put(const char* data, size_t size, const std::function<void()>& waiting);
  void Take(char* data, size_t size, const std::function<void()>& waiting);

  FileDescriptor socket_;
};

}  // namespace pytriton
