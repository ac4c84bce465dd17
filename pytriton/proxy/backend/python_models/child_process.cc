#include "python_models/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace pytriton {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFirstFile = 3;
constexpr int kOutOfTheWay = 64;  // above the descriptors that are passed to the process
constexpr std::chrono::milliseconds kExitPollInterval(5);
constexpr std::chrono::seconds kExitTimeout(1);  // from a closed control channel to the exit of the process

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The program that the launcher becomes, and the launcher.
std::string ProgramOf(const ProcessSpec& spec) {
  return spec.words.size() > 1 ? spec.words[1] + " by " + spec.words[0] : spec.words[0];
}

// Throws ProcessError if a process cannot be started because of `error`, a value of errno.
void CheckStart(int error, const ProcessSpec& spec) {
  if (error != 0) throw ProcessError("cannot start " + ProgramOf(spec) + ": " + std::strerror(error));
}

// The files of a new process: an empty standard input, this process's output, and those passed to it.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  // Returns 0, or the error.
  int Add(const std::vector<const FileDescriptor*>& files) {
    int error = posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    int number = kFirstFile;
    for (const FileDescriptor* file : files) {
      if (error != 0) return error;
      copies_.emplace_back(fcntl(file->get(), F_DUPFD_CLOEXEC, kOutOfTheWay));
      if (!copies_.back().valid()) return errno;
      error = posix_spawn_file_actions_adddup2(&actions_, copies_.back().get(), number++);
    }
    return error != 0 ? error : posix_spawn_file_actions_addclosefrom_np(&actions_, number);
  }

  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
  std::vector<FileDescriptor> copies_;
};

// Default signals; and a process group of its own, which Ctrl-C in a terminal does not reach, and which can be killed
// as a whole.
class Attributes {
 public:
  Attributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t signals;
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  ~Attributes() { posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// Returns how a process has exited, and waits for that unless `options` prevents it. It stays a zombie, so that its id
// is not reused.
siginfo_t ExitOf(pid_t pid, int options) {
  siginfo_t info = {};
  while (waitid(P_PID, pid, &info, WEXITED | WNOWAIT | options) != 0 && errno == EINTR) {
  }
  return info;
}

}  // namespace

Process::Process(const ProcessSpec& spec, const std::vector<const FileDescriptor*>& files) {
  std::vector<std::string> words = spec.words;
  words.insert(words.begin() + 1, std::to_string(getpid()));
  FileActions actions;
  CheckStart(actions.Add(files), spec);
  const Attributes attributes;
  CheckStart(posix_spawn(&pid_, words[0].c_str(), actions.get(), attributes.get(), Pointers(words).data(),
                         Pointers(spec.environment).data()),
             spec);
}

Process::~Process() {
  Kill();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool Process::alive() const { return ExitOf(pid_, WNOHANG).si_pid == 0; }

void Process::Wait() const {
  ExitOf(pid_, 0);
  Kill();  // the rest of its group
}

bool Process::WaitFor(std::chrono::milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  while (alive()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(kExitPollInterval);
  }
  return true;
}

void Process::Kill() const { kill(-pid_, SIGKILL); }

std::string Process::DescribeExit() const {
  const siginfo_t info = ExitOf(pid_, 0);
  if (info.si_code == CLD_EXITED) return "ended with exit status " + std::to_string(info.si_status);
  const char* name = sigabbrev_np(info.si_status);
  return "was killed by " + (name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(info.si_status));
}

CommandReply ChildProcess::Call(const CommandMessage& command, Timeout timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto start = Clock::now();
  bool gone = false;
  const auto waiting = [&] {
    if (gone) throw ControlChannelError("the worker process has gone");
    gone = !process_.alive();  // its pending messages are to be read first
    if (!timeout || Clock::now() - start < *timeout) return;
    process_.Kill();
    throw ProcessError("its worker process has not replied for " + std::to_string(timeout->count() / 1000) +
                       " s and was killed");
  };
  std::string frame;
  try {
    frame = control_.Call(command, waiting);
  } catch (const ControlChannelError&) {
    if (!process_.WaitFor(kExitTimeout)) process_.Kill();
    throw ProcessError("its worker process " + process_.DescribeExit());
  }
  CommandReply reply = DecodeReply(frame);
  if (!reply.error.empty()) throw CommandError(reply.error, std::move(reply.detail));
  return reply;
}

}  // namespace pytriton
