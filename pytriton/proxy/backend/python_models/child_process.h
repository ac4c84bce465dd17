// A process that the backend has started: a worker process that it controls, or a program that it waits for.
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

// The process could not be started, has exited, or did not reply in time.
class ProcessError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A command failed in the process; `detail` is the traceback, if any.
class CommandError : public std::runtime_error {
 public:
  CommandError(const std::string& error, std::string detail) : std::runtime_error(error), detail_(std::move(detail)) {}
  const std::string& detail() const { return detail_; }

 private:
  std::string detail_;
};

// Specifies a process to start.
struct ProcessSpec {
  std::vector<std::string>
      words;  // the command line; the first word is the path of `pytriton-launch`, which receives this process's id
  std::vector<std::string> environment;  // NAME=value
};

// The process, and all that it has started, is killed when this object is destroyed, when the thread that created it
// ends, and with the server.
class Process {
 public:
  // `files` become the process's file descriptors from 3 on; it has no others except its output. Throws ProcessError.
  explicit Process(const ProcessSpec& spec, const std::vector<const FileDescriptor*>& files = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool alive() const;
  // Waits until the process has exited, and kills what it has started.
  void Wait() const;
  // Returns whether the process exited in time.
  bool WaitFor(std::chrono::milliseconds timeout) const;
  void Kill() const;
  // After its exit: for example "was killed by SIGKILL".
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

  // Sends a command and waits for the reply. Throws CommandError if the command fails, and ProcessError if the process
  // exits or does not reply within `timeout`, in which case it is killed.
  CommandReply Call(const CommandMessage& command, Timeout timeout);

 private:
  ChildProcess(const ProcessSpec& spec, FileDescriptor service, FileDescriptor other)
      : control_(&other), process_(spec, service.valid() ? Files{&other, &service} : Files{&other}) {}

  std::mutex mutex_;
  ControlChannel control_;
  const Process process_;
};

}  // namespace pytriton
