// The queues through which the HTTP front end passes commands, including responses, to its threads.
//
// The front end (libevhtp) writes each command to a pair of sockets, which a thread reads one by one. Here, commands
// are kept in memory and the pair only wakes the thread: one system call for all commands that are waiting, and none
// while the thread is awake and checks the queue itself (`event_loop.cc`).
//
// Workaround for Triton (lost-responses): the sockets' buffer holds some 270 commands. The front end ignores that one
// did not fit, and its client waits forever.
#include "guard/response_queue.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "guard/event_loop.h"
#include "guard/interpose.h"

namespace pytriton::guard {

namespace {

// As libevhtp writes it.
struct __attribute__((packed)) Command {
  char stop;
  void* argument;
  void (*call)(void* thread, void* argument, void* shared);
};

// The commands that go through a pair of sockets in one direction.
struct CommandQueue {
  std::mutex mutex;
  std::vector<Command> waiting;
  bool is_awake = false;         // whether the reader has been woken for them, or checks for them itself
  bool is_token_sent = false;    // whether there is something to read from the pair
  bool looks_itself = false;     // whether the reader decides when it is awake
  std::vector<Command> running;  // used by the reader only
  int writer = -1;
  int reader = -1;
};

thread_local CommandQueue* own_queue = nullptr;

constexpr size_t kMaxFd = 1024;
// The queue that a file descriptor writes to, and the one that it reads from.
std::array<std::atomic<CommandQueue*>, kMaxFd> written;
std::array<std::atomic<CommandQueue*>, kMaxFd> read_from;

CommandQueue* Of(const std::array<std::atomic<CommandQueue*>, kMaxFd>& queues, int fd) {
  return fd < 0 || static_cast<size_t>(fd) >= kMaxFd ? nullptr : queues[fd].load(std::memory_order_acquire);
}

// A thread may still use a queue when its pair is closed: queues live as long as the process.
CommandQueue* NewQueue(int writer, int reader) {
  static std::mutex mutex;
  static auto& all = *new std::deque<CommandQueue>;  // NOLINT: never destroyed, for the same reason
  const std::lock_guard<std::mutex> lock(mutex);
  CommandQueue* queue = &all.emplace_back();
  queue->writer = writer;
  queue->reader = reader;
  return queue;
}

void Connect(int writer, int reader) {
  CommandQueue* queue = NewQueue(writer, reader);
  written[writer].store(queue, std::memory_order_release);
  read_from[reader].store(queue, std::memory_order_release);
}

void Push(CommandQueue* queue, const void* data) {
  Command command;
  std::memcpy(&command, data, sizeof(command));
  {
    const std::lock_guard<std::mutex> lock(queue->mutex);
    queue->waiting.push_back(command);
    if (queue->is_awake) return;
    queue->is_awake = true;
    queue->is_token_sent = true;
  }
  const char token = 0;
  PYTRITON_NEXT(send)(queue->writer, &token, sizeof(token), 0);
}

void RunAll(void* thread, void* argument, void* shared) {
  auto* commands = static_cast<std::vector<Command>*>(argument);
  for (const Command& command : *commands) {
    if (command.call != nullptr) command.call(thread, command.argument, shared);
  }
  commands->clear();
}

// All commands that are waiting, as one; returns whether there are any.
bool Take(CommandQueue* queue, void* data) {
  {
    const std::lock_guard<std::mutex> lock(queue->mutex);
    if (!queue->looks_itself) queue->is_awake = false;
    queue->running.swap(queue->waiting);
  }
  if (queue->running.empty()) return false;
  const bool stop =
      std::any_of(queue->running.begin(), queue->running.end(), [](const Command& each) { return each.stop != 0; });
  const Command all = {static_cast<char>(stop), &queue->running, RunAll};
  std::memcpy(data, &all, sizeof(all));
  return true;
}

bool ExpectToken(CommandQueue* queue) {
  const std::lock_guard<std::mutex> lock(queue->mutex);
  return std::exchange(queue->is_token_sent, false);
}

}  // namespace

int CommandsFd() {
  if (own_queue == nullptr) return -1;
  return Of(read_from, own_queue->reader) == own_queue ? own_queue->reader : -1;
}

bool HasCommands(bool about_to_sleep) {
  const std::lock_guard<std::mutex> lock(own_queue->mutex);
  const bool has_commands = !own_queue->waiting.empty();
  own_queue->looks_itself = true;
  own_queue->is_awake = has_commands || !about_to_sleep;
  return has_commands;
}

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
  CommandQueue* queue = Of(written, fd);
  if (queue == nullptr || size != sizeof(Command)) return PYTRITON_NEXT(send)(fd, data, size, flags);
  Push(queue, data);
  return static_cast<ssize_t>(size);
}

ssize_t recv(int fd, void* data, size_t size, int flags) {
  CommandQueue* queue = Of(read_from, fd);
  if (queue == nullptr || size != sizeof(Command)) return PYTRITON_NEXT(recv)(fd, data, size, flags);
  own_queue = queue;
  const bool was_woken = ExpectToken(queue);
  const ssize_t received = was_woken ? PYTRITON_NEXT(recv)(fd, data, size, flags) : 0;
  if (Take(queue, data)) return static_cast<ssize_t>(size);
  return was_woken ? received : PYTRITON_NEXT(recv)(fd, data, size, flags);
}

// The descriptor may become that of another socket.
int close(int fd) {
  ForgetInterest(fd);
  if (Of(written, fd) != nullptr) {
    written[fd] = nullptr;
    read_from[fd] = nullptr;
  }
  return PYTRITON_NEXT(close)(fd);
}
}
