// A process that the backend has started: a worker that it orders about, or a program that it waits for.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "transport/control_channel.h"

namespace pytriton {

// The process cannot be started, has ended, or was silent for too long.
class ProcessError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The process could not do what it was ordered to; `detail` is the traceback, or nothing.
class CommandError : public std::runtime_error {
 public:
  CommandError(const std::string& error, std::string detail) : std::runtime_error(error), detail_(std::move(detail)) {}
  const std::string& detail() const { return detail_; }

 private:
  std::string detail_;
};

// How to start a process.
struct ProcessSpec {
  std::vector<std::string> words;        // the first one is the path of `pytriton-launch`; it is given our process id
  std::vector<std::string> environment;  // NAME=value
};

// The process ends, and what it has started with it, when this object does, when the thread that made it does, and when
// the server does.
class Process {
 public:
  // `files` become the process's file descriptors 3 and up; it has no others but its output. Throws ProcessError.
  explicit Process(const ProcessSpec& spec, const std::vector<const FileDescriptor*>& files = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool alive() const;
  // Waits for its end, and ends what it has started.
  void Wait() const;
  // Whether it ended in time.
  bool WaitFor(std::chrono::milliseconds timeout) const;
  void Kill() const;
  // After it: "was killed by SIGKILL", say.
  std::string DescribeExit() const;

 private:
  pid_t pid_ = -1;
};

class ChildProcess {
 public:
  using Timeout = std::optional<std::chrono::milliseconds>;
  using Files = std::vector<const FileDescriptor*>;

  // `service` is the process's end of its service channel.
  explicit ChildProcess(const ProcessSpec& spec, FileDescriptor service = FileDescriptor())
      : ChildProcess(spec, std::move(service), FileDescriptor()) {}

  const Process& process() const { return process_; }

  // Has an order obeyed. Throws CommandError when it fails, and ProcessError when the process ends or is silent for
  // `timeout`, in which case it is ended.
  CommandReply Ask(const CommandMessage& command, Timeout timeout);

 private:
  ChildProcess(const ProcessSpec& spec, FileDescriptor service, FileDescriptor other)
      : control_(&other), process_(spec, service.valid() ? Files{&other, &service} : Files{&other}) {}

  std::mutex mutex_;
  ControlChannel control_;
  const Process process_;
};

}  // namespace pytriton
