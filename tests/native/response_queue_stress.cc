// The guard's queues under stress: writers of more commands than a pair of sockets holds, and a reader that is late.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "front_end.h"

namespace {

using front_end::Command;
using front_end::Fail;

constexpr int kWriters = 4;
constexpr int64_t kCommands = 20'000;  // of each writer
constexpr int kPollTimeoutMs = 5'000;

struct Note {
  int writer;
  int64_t number;
};

// What the reader has seen.
struct Seen {
  std::array<int64_t, kWriters> next = {};
  int64_t count = 0;
};

void See(void* thread, void* argument, void* shared) {
  if (thread != shared) Fail("a command was called with something else");
  auto* seen = static_cast<Seen*>(thread);
  const auto* note = static_cast<const Note*>(argument);
  if (note->number != seen->next[note->writer]++) Fail("commands of a writer changed places");
  ++seen->count;
}

// As the front end reads it: a command for each time that the socket is readable. Returns whether it has to stop.
bool ReadOne(int fd, Seen* seen) {
  pollfd readable = {fd, POLLIN, 0};
  if (poll(&readable, 1, kPollTimeoutMs) != 1) Fail("commands were lost");
  Command command;
  if (recv(fd, &command, sizeof(command), 0) != sizeof(command)) return false;
  if (command.call != nullptr) command.call(seen, command.argument, seen);
  return command.stop != 0;
}

int WaitingBytes(int fd) {
  int bytes = 0;
  ioctl(fd, FIONREAD, &bytes);
  return bytes;
}

bool Send(int fd, const Command& command) { return send(fd, &command, sizeof(command), 0) == sizeof(command); }

void Write(int fd, std::vector<Note>* notes, std::atomic<int>* refused) {
  for (Note& note : *notes) {
    if (!Send(fd, {0, &note, See})) ++*refused;
  }
}

}  // namespace

int main() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) Fail("no pair of sockets");
  for (const int fd : fds) fcntl(fd, F_SETFL, O_NONBLOCK);
  std::atomic<int> refused = 0;
  std::vector<std::vector<Note>> notes(kWriters);
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    for (int64_t number = 0; number < kCommands; ++number) notes[writer].push_back({writer, number});
    writers.emplace_back(Write, fds[1], &notes[writer], &refused);
  }
  while (WaitingBytes(fds[0]) == 0) std::this_thread::yield();
  usleep(100'000);  // meanwhile, more commands are waiting than the sockets would hold
  if (WaitingBytes(fds[0]) != 1) Fail("the reader was woken more than once");
  Seen seen;
  while (seen.count < kWriters * kCommands) {
    if (ReadOne(fds[0], &seen)) Fail("a command to stop came from nowhere");
  }
  for (std::thread& writer : writers) writer.join();
  if (refused != 0) Fail("a command was refused");

  Note last = {0, kCommands};
  if (!Send(fds[1], {0, &last, See}) || !Send(fds[1], {1, nullptr, nullptr})) Fail("a command was refused");
  if (!ReadOne(fds[0], &seen) || seen.next[0] != kCommands + 1) Fail("the command to stop was lost");

  char byte = 1;  // a signal's handler writes one
  if (send(fds[1], &byte, sizeof(byte), 0) != 1 || recv(fds[0], &byte, sizeof(byte), 0) != 1 || byte != 1) {
    Fail("a byte was lost");
  }
  for (const int fd : fds) close(fd);
  if (socketpair(AF_INET, SOCK_STREAM, 0, fds) == 0) Fail("a pair that there is not");
  std::puts("passed");
}
