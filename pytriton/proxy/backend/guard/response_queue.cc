// Keeps the queues by which the HTTP front end passes responses to its threads from losing any.
//
// Workaround for Triton (lost-responses): such a queue is a pair of sockets, whose buffer holds some 270 messages.
// The front end ignores that a message did not fit, and its client waits forever. Here, what does not fit is kept and
// sent once the reader has made room.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <string>

#include "guard/interpose.h"

namespace pytriton::guard {

namespace {

// What did not fit into the sockets of a pair, in one direction.
struct Overflow {
  std::mutex mutex;
  std::atomic<bool> any = false;
  std::deque<std::string> messages;
  int writer = -1;
};

constexpr size_t kMaxFd = 1024;
// The overflow that a file descriptor writes to, and the one that it reads from. Pairs live as long as the process.
std::array<std::atomic<Overflow*>, kMaxFd> written;
std::array<std::atomic<Overflow*>, kMaxFd> read_from;

Overflow* Of(const std::array<std::atomic<Overflow*>, kMaxFd>& queues, int fd) {
  return fd < 0 || static_cast<size_t>(fd) >= kMaxFd ? nullptr : queues[fd].load(std::memory_order_acquire);
}

void Connect(int writer, int reader) {
  auto* overflow = new Overflow;  // NOLINT: as long as the process lives
  overflow->writer = writer;
  written[writer].store(overflow, std::memory_order_release);
  read_from[reader].store(overflow, std::memory_order_release);
}

// A descriptor may have become that of another socket meanwhile.
bool IsPair(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

bool IsFull(ssize_t sent) { return sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK); }

ssize_t Keep(Overflow* overflow, const void* data, size_t size, int flags) {
  const std::lock_guard<std::mutex> lock(overflow->mutex);
  // Set before the last try: a reader that makes room after it will look here.
  overflow->any = true;
  if (overflow->messages.empty()) {
    const ssize_t sent = PYTRITON_NEXT(send)(overflow->writer, data, size, flags);
    if (!IsFull(sent) || !IsPair(overflow->writer)) {
      overflow->any = false;
      return sent;
    }
  }
  overflow->messages.emplace_back(static_cast<const char*>(data), size);
  return static_cast<ssize_t>(size);
}

void Refill(Overflow* overflow) {
  const std::lock_guard<std::mutex> lock(overflow->mutex);
  while (!overflow->messages.empty()) {
    const std::string& message = overflow->messages.front();
    if (PYTRITON_NEXT(send)(overflow->writer, message.data(), message.size(), 0) < 0) return;
    overflow->messages.pop_front();
  }
  overflow->any = false;
}

}  // namespace

}  // namespace pytriton::guard

using namespace pytriton::guard;  // NOLINT: this file is a program's

extern "C" {

int socketpair(int domain, int type, int protocol, int fds[2]) noexcept {
  const int status = PYTRITON_NEXT(socketpair)(domain, type, protocol, fds);
  const bool fit = status == 0 && fds[0] < static_cast<int>(kMaxFd) && fds[1] < static_cast<int>(kMaxFd);
  if (fit && domain == AF_UNIX && type == SOCK_STREAM && PYTRITON_CALLED_BY_PROGRAM()) {
    Connect(fds[0], fds[1]);
    Connect(fds[1], fds[0]);
  }
  return status;
}

ssize_t send(int fd, const void* data, size_t size, int flags) {
  Overflow* overflow = Of(written, fd);
  // A signal's handler writes single bytes, which may get lost.
  if (overflow == nullptr || size < 2) return PYTRITON_NEXT(send)(fd, data, size, flags);
  if (!overflow->any) {
    const ssize_t sent = PYTRITON_NEXT(send)(fd, data, size, flags);
    if (!IsFull(sent)) return sent;
  }
  return Keep(overflow, data, size, flags);
}

ssize_t recv(int fd, void* data, size_t size, int flags) {
  const ssize_t received = PYTRITON_NEXT(recv)(fd, data, size, flags);
  Overflow* overflow = Of(read_from, fd);
  if (received > 0 && overflow != nullptr && overflow->any) Refill(overflow);
  return received;
}
}
