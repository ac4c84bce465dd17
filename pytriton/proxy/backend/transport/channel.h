// The channel between a model instance and its worker: a Unix SEQPACKET socket that carries the handshake, with the
// file descriptors of the arenas, and the notifications, unless these go through a doorbell. A round trip costs two
// thread wake-ups, and a disconnected peer is noticed at once. Counterpart of `transport/channel.py`.
#pragma once

#include <sys/types.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "transport/arena.h"
#include "wire/notification.h"

namespace pytriton {

class ChannelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Sends a notification over a SEQPACKET socket, with `flags` of `sendmsg`, together with `fd` and `other_fd` unless
// they are -1. Returns whether it was sent; if not, `errno` is the reason.
bool SendNotification(int socket, const Notification& notification, int flags, int fd = -1, int other_fd = -1);

// Receives a notification, with `flags` of `recvmsg`, and with it up to two file descriptors if `fds` is given. Returns
// the result of `recvmsg`: the size of a notification if one arrived.
ssize_t ReceiveNotification(int socket, Notification* notification, int flags,
                            std::vector<FileDescriptor>* fds = nullptr);

// Connects to the SEQPACKET socket at `path`, on which `peer` listens. Throws ChannelError on failure.
FileDescriptor ConnectTo(const std::string& path, const std::string& peer);

class Channel {
 public:
  // Connects to the worker that listens at `path`.
  explicit Channel(const std::string& path);

  // Sends `fd` and `other_fd` along unless they are -1. Throws ChannelError if the worker has disconnected.
  void Send(const Notification& notification, int fd = -1, int other_fd = -1);

  // How long a `Receive` waits.
  void SetTimeout(int timeout_ms);

  // Waits for a notification, and with it up to two file descriptors if `fds` is given. Returns whether one arrived.
  // Throws ChannelError if the worker has disconnected.
  bool Receive(Notification* notification, std::vector<FileDescriptor>* fds = nullptr);

  // Waits until there is something to receive or `end_ns`, on the monotonic clock.
  void AwaitUntil(uint64_t end_ns) const;

  // Waits until the worker has disconnected, or the descriptor `other` is readable.
  void AwaitEnd(int other) const;

  // Receives a notification without waiting. Returns whether there was one. Throws as `Receive` does.
  bool ReceiveNow(Notification* notification);

  // Closes the connection, and wakes every thread that waits on it, on both sides.
  void Close();

  // A descriptor that becomes readable when the worker's process exits; invalid on systems without pidfds.
  FileDescriptor Process() const;

  // Whether the worker is connected and has sent nothing, as between two batches.
  bool Idle() const;

 private:
  bool Receive(Notification* notification, int flags, std::vector<FileDescriptor>* fds);

  FileDescriptor socket_;
};

}  // namespace pytriton
