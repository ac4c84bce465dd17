// Saves the event loops of the HTTP front end the system calls that change nothing.
// For each request, the front end (libevhtp) stops reading, waits until it can write, finishes writing, and reads
// again. Each of these changes the kernel's interest list (`epoll_ctl`) and takes an iteration of the loop. Here, the
// kernel is notified of a change only when it matters:
//
// - A connection that is to be written to most likely has room: the loop is told so at once, and the kernel is queried
// only if there was none. - A connection that is no longer read will be read again: the kernel's interest stays unless
// something arrives in
//   between.
// Commands for the thread of a loop, including responses, are events of its next iteration, too.
#include "guard/event_loop.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <vector>

#include "base/switches.h"
#include "guard/interpose.h"
#include "guard/response_queue.h"

namespace pytriton::guard {

namespace {

constexpr uint32_t kFailures = EPOLLERR | EPOLLHUP;  // always reported by the kernel

// The events that a loop waits for at one file descriptor.
struct Interest {
  std::atomic<bool> is_known = false;  // whether the loop's changes to it come through here
  bool was_told = false;               // whether the loop was told that it can write, and has yet to have written
  uint32_t wanted = 0;                 // by the loop
  uint32_t registered = 0;             // in the kernel

  uint32_t Missing() const { return wanted & ~registered; }
};

constexpr size_t kMaxFd = 65'536;  // larger descriptors are left to the kernel
std::array<Interest, kMaxFd> interests;

// Descriptors of the calling thread's loop that are to be written to and not registered for it.
struct Writers {
  std::vector<int> new_ones;  // to be told that they can
  std::vector<int> told;      // in the last turn
};
thread_local Writers writers;

long Call(long number, long first, long second, long third, long fourth) {
  return PYTRITON_NEXT(syscall)(number, first, second, third, fourth, 0L, 0L);
}

int Change(int epoll, int operation, int fd, epoll_event* event) {
  return static_cast<int>(Call(SYS_epoll_ctl, epoll, operation, fd, reinterpret_cast<long>(event)));
}

int WaitForKernel(int epoll, epoll_event* events, int max_count, int timeout_ms) {
  return static_cast<int>(Call(SYS_epoll_wait, epoll, reinterpret_cast<long>(events), max_count, timeout_ms));
}

bool Register(int epoll, int fd, Interest* interest, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (Change(epoll, EPOLL_CTL_MOD, fd, &event) != 0) return false;
  interest->registered = events;
  return true;
}

Interest* Find(int fd) { return fd >= 0 && static_cast<size_t>(fd) < kMaxFd ? &interests[fd] : nullptr; }

// As the loop calls it: `epoll_ctl` for a connection of the calling thread.
int ChangeInterest(int epoll, int operation, int fd, epoll_event* event) {
  Interest* interest = Find(fd);
  if (interest == nullptr || !interest->is_known) {
    const int status = Change(epoll, operation, fd, event);
    if (status != 0 || interest == nullptr || operation != EPOLL_CTL_ADD) return status;
    interest->was_told = false;
    interest->wanted = interest->registered = event->events;
    interest->is_known = true;
    return 0;
  }
  interest->wanted = operation == EPOLL_CTL_DEL ? 0 : event->events;
  if ((interest->wanted & EPOLLOUT) == 0) interest->was_told = false;
  const bool is_written = (interest->registered & ~interest->wanted & EPOLLOUT) != 0;
  if (is_written || (interest->Missing() & ~EPOLLOUT) != 0) {
    const uint32_t events = interest->wanted & ~(interest->Missing() & EPOLLOUT);
    if (!Register(epoll, fd, interest, events)) return -1;
  }
  if ((interest->Missing() & EPOLLOUT) != 0 && !interest->was_told) writers.new_ones.push_back(fd);
  return 0;
}

bool StillWantsToWrite(int fd) {
  const Interest& interest = interests[fd];
  return interest.is_known && (interest.Missing() & EPOLLOUT) != 0;
}

// Descriptors that were reported as writable, and are still to be written to, were not writable.
void RegisterWriters(int epoll) {
  for (const int fd : writers.told) {
    if (interests[fd].was_told && StillWantsToWrite(fd)) Register(epoll, fd, &interests[fd], interests[fd].wanted);
  }
  writers.told.clear();
}

// Reports those descriptors to the loop as writable; returns the number of events.
int TellWriters(epoll_event* events, int max_count) {
  int count = 0;
  while (count < max_count && !writers.new_ones.empty()) {
    const int fd = writers.new_ones.back();
    writers.new_ones.pop_back();
    if (interests[fd].was_told || !StillWantsToWrite(fd)) continue;
    interests[fd].was_told = true;
    writers.told.push_back(fd);
    events[count].events = EPOLLOUT;
    events[count].data.fd = fd;
    ++count;
  }
  return count;
}

// Whether the loop waits for the event that the kernel reports. If not, the kernel no longer reports it.
bool IsWanted(int epoll, epoll_event* event) {
  const int fd = event->data.fd;
  Interest* interest = Find(fd);
  if (interest == nullptr || !interest->is_known) return true;
  if (interest->wanted == 0) {
    ForgetInterest(fd);
    Change(epoll, EPOLL_CTL_DEL, fd, event);
    return false;
  }
  event->events &= interest->wanted | kFailures;
  if (event->events == 0) Register(epoll, fd, interest, interest->wanted);
  return event->events != 0;
}

// As the loop calls it: `epoll_wait` in the thread that is woken for commands by `commands`.
int Wait(int epoll, epoll_event* events, int max_count, int timeout_ms, int commands) {
  RegisterWriters(epoll);
  while (true) {
    int count = TellWriters(events, max_count - 1);
    const bool may_sleep = count == 0 && timeout_ms != 0;
    const bool has_commands = HasCommands(may_sleep);
    const bool sleeps = may_sleep && !has_commands;
    if (has_commands) {
      events[count].events = EPOLLIN;
      events[count].data.fd = commands;
      ++count;
    }
    epoll_event* first = events + count;
    const int room = max_count - count;
    const int added = room == 0 ? 0 : WaitForKernel(epoll, first, room, sleeps ? timeout_ms : 0);
    if (sleeps) HasCommands(false);
    if (added < 0 && count == 0) return added;
    epoll_event* last = std::remove_if(first, first + std::max(added, 0), [&](epoll_event& event) {
      return (has_commands && event.data.fd == commands) || !IsWanted(epoll, &event);
    });
    count = static_cast<int>(last - events);
    if (count > 0 || added <= 0) return count;
  }
}

}  // namespace

void ForgetInterest(int fd) {
  Interest* interest = Find(fd);
  if (interest == nullptr || !interest->is_known) return;
  interest->is_known = false;
  for (std::vector<int>* fds : {&writers.new_ones, &writers.told}) {
    fds->erase(std::remove(fds->begin(), fds->end(), fd), fds->end());
  }
}

}  // namespace pytriton::guard

using namespace pytriton::guard;  // NOLINT: this file is a program's

// libevent, which is part of the program, makes both system calls like this.
extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  std::array<long, 6> arguments;
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  static const bool is_on = !pytriton::IsSwitchedOff("PYTRITON_EVENT_LOOP");
  const auto& [first, second, third, fourth, fifth, sixth] = arguments;
  if (is_on && (number == SYS_epoll_ctl || number == SYS_epoll_wait)) {
    const int commands = CommandsFd();
    const int epoll = static_cast<int>(first);
    if (number == SYS_epoll_wait && commands >= 0) {
      auto* events = reinterpret_cast<epoll_event*>(second);
      return Wait(epoll, events, static_cast<int>(third), static_cast<int>(fourth), commands);
    }
    if (number == SYS_epoll_ctl && commands >= 0 && third != commands) {
      auto* event = reinterpret_cast<epoll_event*>(fourth);
      return ChangeInterest(epoll, static_cast<int>(second), static_cast<int>(third), event);
    }
  }
  return PYTRITON_NEXT(syscall)(number, first, second, third, fourth, fifth, sixth);
}
