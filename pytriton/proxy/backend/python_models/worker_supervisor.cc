#include "python_models/worker_supervisor.h"

#include <algorithm>
#include <utility>

#include "base/work_folder.h"
#include "python_models/supervision_policy.h"
#include "triton/error.h"

namespace pytriton {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAdmitTimeout(10000);
constexpr milliseconds kStopTimeout(30000);
constexpr milliseconds kDefaultTimeout(30000);
constexpr milliseconds kRetryInterval(5);
constexpr milliseconds kPollInterval(50);

std::string Seconds(milliseconds time) {
  const std::string tenths = std::to_string(time.count() / 100);
  return (tenths.size() > 1 ? tenths.substr(0, tenths.size() - 1) : "0") + "." + tenths.back() + " s";
}

}  // namespace

WorkerSupervisor::WorkerSupervisor(ProcessSpec spec, std::string model, ChildProcess::Timeout start_timeout,
                                   OpenService open_service)
    : spec_(std::move(spec)),
      model_(std::move(model)),
      start_timeout_(start_timeout),
      open_service_(std::move(open_service)) {
  thread_ = std::thread([this] { Run(); });
}

WorkerSupervisor::~WorkerSupervisor() {
  std::shared_ptr<ChildProcess> process;
  bool idle = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    process = process_;
    idle = state_ == State::kStarted || state_ == State::kLoaded;
  }
  changed_.notify_all();
  if (process != nullptr) {
    const auto deadline = Clock::now() + kStopTimeout;
    try {
      if (idle) process->Call({Command::kStop}, kStopTimeout);
    } catch (const CommandError& error) {
      Log(TRITONSERVER_LOG_ERROR, "model '" + model_ + "': " + error.what() + "\n" + error.detail());
    } catch (const std::exception& error) {
      Log(TRITONSERVER_LOG_WARN, "model '" + model_ + "': " + error.what() + " while it was being stopped");
    }
    const auto left = std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    if (!idle || !process->process().WaitFor(left)) process->process().Kill();
  }
  thread_.join();
  if (!load_.folder.empty()) RemoveFolder(load_.folder);
}

std::string WorkerSupervisor::Complete(const CommandMessage& command) { return CallStarted(command).config; }

void WorkerSupervisor::Load(const CommandMessage& command, std::function<void()> on_restart) {
  load_ = command;
  on_restart_ = std::move(on_restart);
  const bool has_readiness_check = CallStarted(command).config == kHasReadinessCheck;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kEnded) throw ProcessError(failure_);
  state_ = State::kLoaded;
  has_readiness_check_ = has_readiness_check;
}

AdmissionMessage WorkerSupervisor::IssueTicket(Clock::time_point deadline, const std::function<bool()>& wanted) {
  while (true) {
    const std::shared_ptr<ChildProcess> process = Loaded(deadline, wanted);
    try {
      return process->Call({Command::kIssueTicket}, kAdmitTimeout).admission;
    } catch (const std::exception& error) {
      if (Clock::now() > deadline) throw ProcessError(error.what());
      std::this_thread::sleep_for(kRetryInterval);  // the thread notices its exit, too
    }
  }
}

void WorkerSupervisor::CheckReady() {
  std::shared_ptr<ChildProcess> process;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kStarting) throw ProcessError(kRestarting);
    if (state_ != State::kLoaded) throw ProcessError(failure_);
    if (has_readiness_check_) process = process_;
  }
  if (process != nullptr) process->Call({Command::kCheckReady}, timeout());
}

std::shared_ptr<ServiceChannel> WorkerSupervisor::service() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return service_;
}

milliseconds WorkerSupervisor::timeout() const { return start_timeout_.value_or(kDefaultTimeout); }

void WorkerSupervisor::Start() {
  FileDescriptor worker_end;
  std::shared_ptr<ServiceChannel> service = open_service_ != nullptr ? open_service_(&worker_end) : nullptr;
  auto process = std::make_shared<ChildProcess>(spec_, std::move(worker_end));
  const std::lock_guard<std::mutex> lock(mutex_);
  process_ = std::move(process);
  service_ = std::move(service);
  if (stopping_) process_->process().Kill();
}

// Starts and watches processes. They are tied to this thread, which lives as long as the supervisor.
void WorkerSupervisor::Run() {
  try {
    Start();
    const std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kStarted;
  } catch (const std::exception& error) {
    return End(error.what());
  }
  changed_.notify_all();
  loaded_since_ = Clock::now();
  while (true) {
    const Process& process = process_->process();  // only this thread replaces it
    process.Wait();
    std::string reason = "its worker process (" + std::to_string(process.pid()) + ") " + process.DescribeExit();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_ || state_ != State::kLoaded) break;
      state_ = State::kStarting;
    }
    if (Clock::now() - loaded_since_ > kResetAfter) delay_ = milliseconds(0);
    if (!Restart(&reason)) return;
  }
  End("its worker process " + process_->process().DescribeExit());
}

// Tries until it succeeds; returns false if the supervisor is being stopped.
bool WorkerSupervisor::Restart(std::string* reason) {
  while (true) {
    const std::string when = delay_.count() == 0 ? "" : " in " + Seconds(delay_);
    Log(TRITONSERVER_LOG_WARN, "model '" + model_ + "': " + *reason + "; restarting it" + when);
    if (!Pause(delay_)) return false;
    delay_ = std::clamp(delay_ * 2, kFirstDelay, kMaxDelay);
    on_restart_();
    if (StartAndLoad(reason)) return true;
  }
}

bool WorkerSupervisor::StartAndLoad(std::string* reason) {
  try {
    Start();
    process_->Call(load_, start_timeout_);
    loaded_since_ = Clock::now();
    const std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kLoaded;
    changed_.notify_all();
    return true;
  } catch (const CommandError& error) {
    if (!error.detail().empty()) Log(TRITONSERVER_LOG_ERROR, error.detail());
    *reason = error.what();
  } catch (const std::exception& error) {
    *reason = error.what();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (process_ != nullptr) process_->process().Kill();
  failure_ = *reason;
  ++failures_;
  changed_.notify_all();
  return false;
}

void WorkerSupervisor::End(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kEnded;
  failure_ = reason;
  changed_.notify_all();
}

// Returns false if the supervisor is being stopped.
bool WorkerSupervisor::Pause(milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopping_; });
}

CommandReply WorkerSupervisor::CallStarted(const CommandMessage& command) {
  std::shared_ptr<ChildProcess> process;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::kStarting; });
    if (state_ == State::kEnded) throw ProcessError(failure_);
    process = process_;
  }
  return process->Call(command, start_timeout_);
}

std::shared_ptr<ChildProcess> WorkerSupervisor::Loaded(Clock::time_point deadline,
                                                       const std::function<bool()>& wanted) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t failures = failures_;
  while (state_ == State::kStarting && failures_ == failures) {
    if (Clock::now() > deadline || !wanted()) throw ProcessError("its worker process is still being restarted");
    changed_.wait_for(lock, kPollInterval);
  }
  if (state_ != State::kLoaded) throw ProcessError(failure_);
  return process_;
}

}  // namespace pytriton
