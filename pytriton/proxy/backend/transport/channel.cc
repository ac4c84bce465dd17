#include "transport/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/system_error.h"

namespace pytriton {

namespace {

constexpr size_t kMaxFds = 2;  // with one notification

}  // namespace

bool SendNotification(int socket, const Notification& notification, int flags, int fd, int other_fd) {
  Notification copy = notification;
  iovec data = {&copy, sizeof(copy)};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  const int fds[] = {fd, other_fd};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
  if (fd >= 0) {
    const size_t size = other_fd >= 0 ? sizeof(fds) : sizeof(fd);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), fds, size);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(notification));
}

ssize_t ReceiveNotification(int socket, Notification* notification, int flags, std::vector<FileDescriptor>* fds) {
  iovec data = {notification, sizeof(*notification)};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  if (fds != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ssize_t received;
  do {
    received = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 || fds == nullptr) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof(fd));
      fds->emplace_back(fd);
    }
  }
  return received;
}

FileDescriptor ConnectTo(const std::string& path, const std::string& peer) {
  FileDescriptor connected(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!connected.valid()) throw ChannelError(SystemError("cannot create a socket"));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    throw ChannelError("the " + peer + "'s socket path is too long: " + path);
  std::memcpy(address.sun_path, path.data(), path.size());
  if (connect(connected.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw ChannelError(SystemError("cannot reach the " + peer + " at " + path));
  }
  return connected;
}

Channel::Channel(const std::string& path) : socket_(ConnectTo(path, "worker")) {}

void Channel::Send(const Notification& notification, int fd, int other_fd) {
  if (!SendNotification(socket_.get(), notification, 0, fd, other_fd))
    throw ChannelError(SystemError("the worker has gone"));
}

void Channel::SetTimeout(int timeout_ms) {
  const timeval timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
}

bool Channel::Receive(Notification* notification, std::vector<FileDescriptor>* fds) {
  return Receive(notification, 0, fds);
}

void Channel::AwaitUntil(uint64_t end_ns) const {
  const uint64_t now = MonotonicNs();
  const auto left = static_cast<int64_t>(end_ns > now ? end_ns - now : 0);
  const timespec timeout = {left / kSecondNs, left % kSecondNs};
  pollfd events = {socket_.get(), POLLIN, 0};
  ppoll(&events, 1, &timeout, nullptr);
}

void Channel::AwaitEnd(int other) const {
  pollfd events[] = {{socket_.get(), 0, 0}, {other, POLLIN, 0}};
  poll(events, 2, -1);
}

bool Channel::ReceiveNow(Notification* notification) { return Receive(notification, MSG_DONTWAIT, nullptr); }

bool Channel::Receive(Notification* notification, int flags, std::vector<FileDescriptor>* fds) {
  const ssize_t received = ReceiveNotification(socket_.get(), notification, flags, fds);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (received <= 0) throw ChannelError("the worker has gone");
  if (received != static_cast<ssize_t>(sizeof(*notification)))
    throw ChannelError("the worker sent a malformed notification");
  return true;
}

void Channel::Close() { shutdown(socket_.get(), SHUT_RDWR); }

FileDescriptor Channel::Process() const {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return FileDescriptor();
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

bool Channel::Idle() const {
  pollfd events = {socket_.get(), POLLIN, 0};
  return poll(&events, 1, 0) == 0;
}

}  // namespace pytriton
