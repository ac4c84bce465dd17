// The guard's queues under stress: writers of more messages than a pair of sockets holds, and a reader that is late.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kWriters = 4;
constexpr int64_t kMessages = 20'000;  // of each writer
constexpr int kPollTimeoutMs = 5'000;

// As large as a message of the front end.
struct __attribute__((packed)) Message {
  char kind;
  int64_t writer;
  int64_t number;
};

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

}  // namespace

int main() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) Fail("no pair of sockets");
  for (const int fd : fds) fcntl(fd, F_SETFL, O_NONBLOCK);
  std::atomic<int> refused = 0;
  std::vector<std::thread> writers;
  for (int64_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (int64_t number = 0; number < kMessages; ++number) {
        const Message message = {0, writer, number};
        if (send(fds[1], &message, sizeof(message), 0) != sizeof(message)) ++refused;
      }
    });
  }
  std::vector<int64_t> next(kWriters, 0);
  usleep(100'000);  // meanwhile, the sockets fill up
  for (int64_t left = kWriters * kMessages; left > 0; --left) {
    pollfd readable = {fds[0], POLLIN, 0};
    if (poll(&readable, 1, kPollTimeoutMs) != 1) Fail("messages were lost");
    Message message;
    if (recv(fds[0], &message, sizeof(message), 0) != sizeof(message)) Fail("a message was cut");
    if (message.number != next[message.writer]++) Fail("messages of a writer changed places");
  }
  for (std::thread& writer : writers) writer.join();
  if (refused != 0) Fail("a message was refused");
  std::puts("passed");
}
