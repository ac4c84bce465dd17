#include "transport/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/system_error.h"

namespace pytriton {

namespace {

constexpr int kWaitMs = 50;
constexpr int64_t kMaxFrame = int64_t{1} << 30;

}  // namespace

ControlChannel::ControlChannel(FileDescriptor* other) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw ControlChannelError(SystemError("cannot create a socket"));
  }
  socket_.Reset(ends[0]);
  other->Reset(ends[1]);
}

std::string ControlChannel::Call(const CommandMessage& command, const std::function<void()>& waiting) {
  MessageWriter writer;
  Encode(command, &writer);
  auto size = writer.head_size();
  std::string frame(sizeof(size) + size, '\0');
  std::memcpy(frame.data(), &size, sizeof(size));
  writer.CopyTo(frame.data() + sizeof(size));
  WriteAll(frame.data(), frame.size(), waiting);
  ReadAll(reinterpret_cast<char*>(&size), sizeof(size), waiting);
  if (size < 0 || size > kMaxFrame) throw ControlChannelError("the worker process sent a malformed reply");
  frame.resize(size);
  ReadAll(frame.data(), frame.size(), waiting);
  return frame;
}

void ControlChannel::Wait(short events, const std::function<void()>& waiting) {
  pollfd ready = {socket_.get(), events, 0};
  while (poll(&ready, 1, kWaitMs) <= 0) waiting();
}

void ControlChannel::WriteAll(const char* data, size_t size, const std::function<void()>& waiting) {
  while (size > 0) {
    Wait(POLLOUT, waiting);
    const ssize_t sent = send(socket_.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) throw ControlChannelError("the worker process has gone");
    data += sent;
    size -= sent;
  }
}

void ControlChannel::ReadAll(char* data, size_t size, const std::function<void()>& waiting) {
  while (size > 0) {
    Wait(POLLIN, waiting);
    const ssize_t received = recv(socket_.get(), data, size, MSG_DONTWAIT);
    if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (received <= 0) throw ControlChannelError("the worker process has gone");
    data += received;
    size -= received;
  }
}

}  // namespace pytriton
