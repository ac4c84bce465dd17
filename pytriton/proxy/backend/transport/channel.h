// The narrow path between a model instance and its worker: a Unix SEQPACKET socket that carries the handshake, with the
// file descriptors of the arenas, and bells, unless these lie at a doorbell. It costs two thread wake-ups per round
// trip and tells at once when the other side is gone. Twin of `channel.py`.
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

// Sends a bell over a SEQPACKET socket, with `flags` of `sendmsg`. `fd` travels along unless it is -1, and so does
// `other_fd`. Returns whether it went; where not, `errno` says why.
bool SendNotification(int socket, const Notification& notification, int flags, int fd = -1, int other_fd = -1);

// Receives what may be a bell, with `flags` of `recvmsg`, and up to two file descriptors with it where `fds` is given.
// Returns what `recvmsg` does: a bell came where that is its size.
ssize_t ReceiveNotification(int socket, Notification* notification, int flags,
                            std::vector<FileDescriptor>* fds = nullptr);

class Channel {
 public:
  // Connects to the worker that listens at `path`.
  explicit Channel(const std::string& path);

  // `fd` travels along unless it is -1, and so does `other_fd`. Throws ChannelError when the worker is gone.
  void Send(const Notification& notification, int fd = -1, int other_fd = -1);

  // How long a `Receive` waits.
  void SetTimeout(int timeout_ms);

  // Waits for a bell, and for up to two file descriptors with it where `fds` is given. Returns whether one came. Throws
  // ChannelError when the worker is gone.
  bool Receive(Notification* notification, std::vector<FileDescriptor>* fds = nullptr);

  // Takes a bell that has come already. Returns whether there was one. Throws as `Receive` does.
  bool ReceiveNow(Notification* notification);

  // Ends the connection; whoever waits on it, here or there, is told so.
  void Close();

  // A descriptor that becomes readable when the worker's process ends; not valid where the system cannot tell.
  FileDescriptor Process() const;

  // Whether the worker is there and has nothing to say, as between two batches.
  bool Idle() const;

 private:
  bool Receive(Notification* notification, int flags, std::vector<FileDescriptor>* fds);

  FileDescriptor socket_;
};

}  // namespace pytriton
