// The guard's event loop under stress: a server as the HTTP front end is one, and clients of all kinds. Prints how many
// changes of interest a request costs whose client waits for its response.
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "front_end.h"
#include "guard/interpose.h"

namespace {

std::atomic<int64_t> changes = 0;

// What the guard calls in place of the C library's: counts changes of interest.
long Counted(long number, ...) {
  va_list list;
  va_start(list, number);
  std::array<long, 6> given;
  for (long& argument : given) argument = va_arg(list, long);
  va_end(list);
  static const auto next = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  if (number == SYS_epoll_ctl) ++changes;
  return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

}  // namespace

namespace pytriton::guard {

void* NextDefinition(const char* name) {
  return std::string_view(name) == "syscall" ? reinterpret_cast<void*>(&Counted) : dlsym(RTLD_NEXT, name);
}

bool IsInProgram(const void*) { return true; }

}  // namespace pytriton::guard

namespace {

using front_end::Command;
using front_end::Fail;

constexpr int kClients = 4;
constexpr int kRequests = 3'000;    // of each client
constexpr int kAlone = 1'000;       // of the client that is counted
constexpr int kTimeoutMs = 20'000;  // until a request counts as forgotten
constexpr size_t kLarge = 4 << 20;  // more than a socket holds

void Check(bool is_right, const char* what) {
  if (!is_right) Fail(what);
}

struct Request {
  uint64_t number = 0;
  uint64_t response_size = 0;  // of repetitions of the number
};

struct Connection {
  int fd = -1;
  Request request;
  std::string unsent;
  uint32_t interest = 0;
  uint32_t active = 0;  // events of this turn
};

// A thread of the front end.
class Loop {
 public:
  Loop() {
    int fds[2];
    Check(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "no pair of sockets");
    commands_ = fds[0];
    writer_ = fds[1];
    fcntl(commands_, F_SETFL, O_NONBLOCK);
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = commands_;
    Check(syscall(SYS_epoll_ctl, epoll_, EPOLL_CTL_ADD, commands_, &event) == 0, "no interest in commands");
  }

  void Send(void* argument, void (*call)(void*, void*, void*), bool stop = false) const {
    const Command command = {static_cast<char>(stop), argument, call};
    Check(send(writer_, &command, sizeof(command), 0) == sizeof(command), "a command was refused");
  }

  void Run() {
    std::array<epoll_event, 16> events;
    while (!is_stopped_) {
      const long count = syscall(SYS_epoll_wait, epoll_, events.data(), static_cast<int>(events.size()), kTimeoutMs);
      Check(count > 0, "nothing happens any more");
      for (long i = 0; i < count; ++i) Note(events[i]);
      for (Connection* connection : std::exchange(active_, {})) Handle(connection);
    }
  }

  // Commands.
  static void Accept(void* loop, void* connection, void*) {
    auto* self = static_cast<Loop*>(loop);
    auto* accepted = static_cast<Connection*>(connection);
    const auto fd = static_cast<size_t>(accepted->fd);
    if (self->connections_.size() <= fd) self->connections_.resize(fd + 1);
    self->connections_[fd].reset(accepted);
    self->SetInterest(accepted, EPOLLIN);
  }

  static void Respond(void* loop, void* connection, void*) {
    auto* answered = static_cast<Connection*>(connection);
    const Request& request = answered->request;
    const std::string number(reinterpret_cast<const char*>(&request.number), sizeof(request.number));
    for (uint64_t i = 0; i < request.response_size; ++i) answered->unsent += number;
    static_cast<Loop*>(loop)->SetInterest(answered, EPOLLOUT);
    static_cast<Loop*>(loop)->SetInterest(answered, EPOLLIN | EPOLLOUT);
  }

 private:
  void SetInterest(Connection* connection, uint32_t wanted) const {
    epoll_event event = {};
    event.events = wanted;
    event.data.fd = connection->fd;
    const int operation = wanted == 0 ? EPOLL_CTL_DEL : connection->interest == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    Check(syscall(SYS_epoll_ctl, epoll_, operation, connection->fd, &event) == 0, "a change of interest was refused");
    connection->interest = wanted;
  }

  void Close(Connection* connection) {
    if (connection->interest != 0) SetInterest(connection, 0);
    const int fd = connection->fd;
    connections_[fd].reset();
    close(fd);
  }

  // As libevent: a file descriptor may have several events.
  void Note(const epoll_event& event) {
    if (event.data.fd == commands_) return Obey();
    Connection* connection = connections_[event.data.fd].get();
    Check(connection != nullptr, "an event of a connection that is closed");
    Check((event.events & ~(connection->interest | EPOLLERR | EPOLLHUP)) == 0, "an event that nobody wants");
    if (connection->active == 0) active_.push_back(connection);
    connection->active |= event.events;
  }

  void Obey() {
    Command command;
    if (recv(commands_, &command, sizeof(command), 0) != sizeof(command)) return;
    if (command.call != nullptr) command.call(this, command.argument, nullptr);
    is_stopped_ = command.stop != 0;
  }

  void Handle(Connection* connection) {
    const uint32_t events = std::exchange(connection->active, 0);
    if ((events & EPOLLOUT) != 0 && !Write(connection)) return Close(connection);
    if ((events & ~EPOLLOUT) != 0 && connection->unsent.empty() && !Read(connection)) Close(connection);
  }

  bool Write(Connection* connection) const {
    std::string& unsent = connection->unsent;
    const ssize_t size = send(connection->fd, unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (size < 0) return errno == EAGAIN;
    unsent.erase(0, size);
    if (unsent.empty()) SetInterest(connection, EPOLLIN);
    return true;
  }

  bool Read(Connection* connection);

  const int epoll_ = epoll_create1(0);
  int commands_ = -1;
  int writer_ = -1;
  bool is_stopped_ = false;
  std::vector<std::unique_ptr<Connection>> connections_;  // by file descriptor
  std::vector<Connection*> active_;
};

// The backend: responds from a thread of its own.
class Backend {
 public:
  void Add(Loop* loop, Connection* connection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({loop, connection});
    changed_.notify_one();
  }

  void Stop() { Add(nullptr, nullptr); }

  void Run() {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !waiting_.empty(); });
      const auto taken = std::exchange(waiting_, {});
      lock.unlock();
      for (const auto& [loop, connection] : taken) {
        if (loop == nullptr) return;
        loop->Send(connection, Loop::Respond);
      }
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Loop*, Connection*>> waiting_;
} backend;

bool Loop::Read(Connection* connection) {
  const ssize_t size = recv(connection->fd, &connection->request, sizeof(Request), MSG_DONTWAIT);
  if (size < 0 && errno == EAGAIN) return true;
  if (size != sizeof(Request)) return false;
  SetInterest(connection, 0);
  backend.Add(this, connection);
  return true;
}

int Connect(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval timeout = {kTimeoutMs / 1000, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  Check(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "no connection");
  return fd;
}

void SendRequest(int fd, const Request& request) {
  Check(send(fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request), "a request was not sent");
}

void ReceiveResponse(int fd, const Request& request) {
  std::vector<uint64_t> response(request.response_size);
  const auto size = static_cast<ssize_t>(response.size() * sizeof(uint64_t));
  Check(recv(fd, response.data(), size, MSG_WAITALL) == size, "a response is missing");
  for (const uint64_t number : response) Check(number == request.number, "the response to another request");
}

// Sends requests in all the ways that clients have.
void Use(const sockaddr_in& address, int client) {
  int fd = Connect(address);
  for (int i = 0; i < kRequests; ++i) {
    Request request = {static_cast<uint64_t>(client) << 32 | static_cast<uint64_t>(i), 1};
    if (i % 500 == 0) request.response_size = kLarge / sizeof(uint64_t);
    SendRequest(fd, request);
    if (i % 7 == 0) SendRequest(fd, request);
    if (i % 13 == 0) {  // leaves before its response
      close(fd);
      fd = Connect(address);
      continue;
    }
    ReceiveResponse(fd, request);
    if (i % 7 == 0) ReceiveResponse(fd, request);
  }
  close(fd);
}

}  // namespace

int main() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  Check(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0, "no port");
  Check(listen(listener, 64) == 0, "no listener");
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);

  std::array<Loop, 2> loops;
  std::vector<std::thread> threads;
  for (Loop& loop : loops) threads.emplace_back(&Loop::Run, &loop);
  threads.emplace_back(&Backend::Run, &backend);
  std::thread acceptor([&] {
    for (size_t i = 0;; ++i) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
      if (fd < 0) return;
      auto accepted = std::make_unique<Connection>();
      accepted->fd = fd;
      loops[i % loops.size()].Send(accepted.release(), Loop::Accept);
    }
  });

  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) clients.emplace_back(Use, address, client);
  for (std::thread& client : clients) client.join();

  const int fd = Connect(address);
  SendRequest(fd, {0, 1});
  ReceiveResponse(fd, {0, 1});
  const int64_t before = changes;
  for (uint64_t i = 0; i < kAlone; ++i) {
    SendRequest(fd, {i, 1});
    ReceiveResponse(fd, {i, 1});
  }
  std::printf("changes=%.3f\n", static_cast<double>(changes - before) / kAlone);
  close(fd);

  shutdown(listener, SHUT_RDWR);
  acceptor.join();
  for (const Loop& loop : loops) loop.Send(nullptr, nullptr, true);
  backend.Stop();
  for (std::thread& thread : threads) thread.join();
  close(listener);
  std::puts("passed");
}
