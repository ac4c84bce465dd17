// Supervises a worker process with a model: starts it, watches it, and restarts it when it exits.
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

  // Creates a service channel, and sets its argument to the worker's end of it.
  using OpenService = std::function<std::shared_ptr<ServiceChannel>(FileDescriptor*)>;

  // Starts the process. `start_timeout` limits each command that runs the model's code.
  WorkerSupervisor(ProcessSpec spec, std::string model, ChildProcess::Timeout start_timeout,
                   OpenService open_service = nullptr);
  // Stops the process, kills it if it does not exit in time, and removes the folder of its sockets.
  ~WorkerSupervisor();
  WorkerSupervisor(const WorkerSupervisor&) = delete;
  WorkerSupervisor& operator=(const WorkerSupervisor&) = delete;

  // Completes a configuration; to be called before Load. Throws CommandError or ProcessError.
  std::string Complete(const CommandMessage& command);

  // Loads the model, into this process and into each that replaces it; `on_restart` is called for each of those, in the
  // supervisor's thread. Throws CommandError or ProcessError; afterwards, the supervisor cannot be used.
  void Load(const CommandMessage& command, std::function<void()> on_restart);

  // Issues a ticket for a model instance; waits while the process is being restarted and `wanted` returns true. Throws
  // ProcessError with the reason if there is no process.
  AdmissionMessage IssueTicket(Clock::time_point deadline, const std::function<bool()>& wanted);

  // Runs the model's readiness check, if it has one. Throws CommandError or ProcessError if the model is not ready. A
  // process that does not reply for as long as requests wait for a process is killed and restarted.
  void CheckReady();

  // The service channel of the process.
  std::shared_ptr<ServiceChannel> service();

  // How long requests wait for a process that is being restarted.
  std::chrono::milliseconds timeout() const;

 private:
  enum class State { kStarting, kStarted, kLoaded, kEnded };

  void Run();
  void Start();
  bool Restart(std::string* reason);
  bool StartAndLoad(std::string* reason);
  void End(const std::string& reason);
  bool Pause(std::chrono::milliseconds time);
  CommandReply CallStarted(const CommandMessage& command);
  std::shared_ptr<ChildProcess> Loaded(Clock::time_point deadline, const std::function<bool()>& wanted);

  const ProcessSpec spec_;
  const std::string model_;
  const ChildProcess::Timeout start_timeout_;
  const OpenService open_service_;
  CommandMessage load_;
  std::function<void()> on_restart_;
  std::chrono::milliseconds delay_{0};  // before the next start; only used by the thread
  Clock::time_point loaded_since_;      // likewise
  std::mutex mutex_;                    // guards the members below
  std::condition_variable changed_;
  State state_ = State::kStarting;
  bool stopping_ = false;
  bool has_readiness_check_ = false;  // the model has a readiness check
  std::shared_ptr<ChildProcess> process_;
  std::shared_ptr<ServiceChannel> service_;
  int64_t failures_ = 0;  // number of failed starts
  std::string failure_;   // why the last of them failed, or why the process has exited permanently
  std::thread thread_;
};

}  // namespace pytriton
