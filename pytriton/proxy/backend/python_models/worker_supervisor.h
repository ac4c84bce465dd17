// Keeps a worker process with a model in it: starts it, watches it, and starts it again when it has ended.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "python_models/child_process.h"
#include "services/service_channel.h"

namespace pytriton {

class WorkerSupervisor {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes a service channel, and sets its argument to the worker's end of it.
  using OpenService = std::function<std::shared_ptr<ServiceChannel>(FileDescriptor*)>;

  // Starts the process. `start_timeout` bounds each order that runs the model's code.
  WorkerSupervisor(ProcessSpec spec, std::string model, ChildProcess::Timeout start_timeout,
                   OpenService open_service = nullptr);
  // Has the process end in order, and ends it when it does not in time.
  ~WorkerSupervisor();
  WorkerSupervisor(const WorkerSupervisor&) = delete;
  WorkerSupervisor& operator=(const WorkerSupervisor&) = delete;

  // Has a configuration completed; before Load. Throws CommandError or ProcessError.
  std::string Complete(const CommandMessage& command);

  // Loads the model, into this process and into each that takes its place; `on_restart` hears of each of those, in the
  // keeper's own thread. Throws CommandError or ProcessError; the keeper is good for nothing then.
  void Load(const CommandMessage& command, std::function<void()> on_restart);

  // Lets a model instance connect; waits for the process while it is being started again and that is `wanted`. Throws
  // ProcessError: why there is none.
  AdmissionMessage IssueTicket(Clock::time_point deadline, const std::function<bool()>& wanted);

  // Asks the model whether it can infer, if it wants to be asked. Throws CommandError or ProcessError when it cannot. A
  // process that does not answer for as long as requests wait for one is ended, and started again.
  void CheckReady();

  // The service channel of the process.
  std::shared_ptr<ServiceChannel> service();

  // How long requests wait for a process that is being started again.
  std::chrono::milliseconds timeout() const;

 private:
  enum class State { kStarting, kStarted, kLoaded, kEnded };

  void Run();
  void Start();
  bool Restart(std::string* reason);
  bool StartAndLoad(std::string* reason);
  void End(const std::string& reason);
  bool Pause(std::chrono::milliseconds time);
  CommandReply AskStarted(const CommandMessage& command);
  std::shared_ptr<ChildProcess> Loaded(Clock::time_point deadline, const std::function<bool()>& wanted);

  const ProcessSpec spec_;
  const std::string model_;
  const ChildProcess::Timeout start_timeout_;
  const OpenService open_service_;
  CommandMessage load_;
  std::function<void()> on_restart_;
  std::chrono::milliseconds delay_{0};  // before the next start; the thread's own
  Clock::time_point loaded_since_;      // likewise
  std::mutex mutex_;                    // of what follows
  std::condition_variable changed_;
  State state_ = State::kStarting;
  bool stopping_ = false;
  bool asks_ready_ = false;  // the model wants to be asked whether it can infer
  std::shared_ptr<ChildProcess> process_;
  std::shared_ptr<ServiceChannel> service_;
  int64_t failures_ = 0;  // starts that have failed
  std::string failure_;   // why the last of them did, or why the process has ended for good
  std::thread thread_;
};

}  // namespace pytriton
