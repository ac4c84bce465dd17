#include "keeper.h"

#include <algorithm>
#include <utility>

#include "triton_error.h"

namespace pytriton {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstDelay(100);  // before the second start in a row
constexpr milliseconds kLongestDelay(10000);
constexpr std::chrono::seconds kForgotten(60);  // a process that lived that long has earned a start without delay
constexpr milliseconds kAdmitTimeout(10000);
constexpr milliseconds kStopTimeout(30000);
constexpr milliseconds kPatience(30000);  // unless the settings say otherwise
constexpr milliseconds kMoment(5);
constexpr milliseconds kLookEvery(50);

std::string Seconds(milliseconds time) {
  const std::string tenths = std::to_string(time.count() / 100);
  return (tenths.size() > 1 ? tenths.substr(0, tenths.size() - 1) : "0") + "." + tenths.back() + " s";
}

}  // namespace

Keeper::Keeper(Command command, std::string model, WorkerProcess::Timeout start_timeout, OpenService open_service)
    : command_(std::move(command)),
      model_(std::move(model)),
      start_timeout_(start_timeout),
      open_service_(std::move(open_service)) {
  thread_ = std::thread([this] { Run(); });
}

Keeper::~Keeper() {
  std::shared_ptr<WorkerProcess> process;
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
      if (idle) process->Ask({Order::kStop}, kStopTimeout);
    } catch (const OrderError& error) {
      Log(TRITONSERVER_LOG_ERROR, "model '" + model_ + "': " + error.what() + "\n" + error.detail());
    } catch (const std::exception& error) {
      Log(TRITONSERVER_LOG_WARN, "model '" + model_ + "': " + error.what() + " while it was to end");
    }
    const auto left = std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    if (!idle || !process->process().WaitFor(left)) process->process().Kill();
  }
  thread_.join();
}

std::string Keeper::Complete(const OrderMessage& order) { return AskStarted(order).config; }

void Keeper::Load(const OrderMessage& order, std::function<void()> on_restart) {
  load_ = order;
  on_restart_ = std::move(on_restart);
  const bool asks_ready = AskStarted(order).config == kAsksReady;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kEnded) throw ProcessError(failure_);
  state_ = State::kLoaded;
  asks_ready_ = asks_ready;
}

AdmissionMessage Keeper::Admit(Clock::time_point deadline, const std::function<bool()>& wanted) {
  while (true) {
    const std::shared_ptr<WorkerProcess> process = Loaded(deadline, wanted);
    try {
      return process->Ask({Order::kAdmit}, kAdmitTimeout).admission;
    } catch (const std::exception& error) {
      if (Clock::now() > deadline) throw ProcessError(error.what());
      std::this_thread::sleep_for(kMoment);  // the thread hears of its end, too
    }
  }
}

void Keeper::CheckReady() {
  std::shared_ptr<WorkerProcess> process;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kStarting) throw ProcessError("its worker process is being started again");
    if (state_ != State::kLoaded) throw ProcessError(failure_);
    if (asks_ready_) process = process_;
  }
  if (process != nullptr) process->Ask({Order::kReady}, patience());
}

std::shared_ptr<ServiceChannel> Keeper::service() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return service_;
}

milliseconds Keeper::patience() const { return start_timeout_.value_or(kPatience); }

void Keeper::Start() {
  FileDescriptor worker_end;
  std::shared_ptr<ServiceChannel> service = open_service_ != nullptr ? open_service_(&worker_end) : nullptr;
  auto process = std::make_shared<WorkerProcess>(command_, std::move(worker_end));
  const std::lock_guard<std::mutex> lock(mutex_);
  process_ = std::move(process);
  service_ = std::move(service);
  if (stopping_) process_->process().Kill();
}

// Starts and watches processes. They are tied to this thread, which lives as long as the keeper.
void Keeper::Run() {
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
    const Process& process = process_->process();  // which this thread alone replaces
    process.Wait();
    std::string reason = "its worker process (" + std::to_string(process.pid()) + ") " + process.HowItEnded();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_ || state_ != State::kLoaded) break;
      state_ = State::kStarting;
    }
    if (Clock::now() - loaded_since_ > kForgotten) delay_ = milliseconds(0);
    if (!Restart(&reason)) return;
  }
  End("its worker process " + process_->process().HowItEnded());
}

// Tries until it succeeds; returns false when it is to stop.
bool Keeper::Restart(std::string* reason) {
  while (true) {
    const std::string when = delay_.count() == 0 ? "" : " in " + Seconds(delay_);
    Log(TRITONSERVER_LOG_WARN, "model '" + model_ + "': " + *reason + "; it is started again" + when);
    if (!Pause(delay_)) return false;
    delay_ = std::clamp(delay_ * 2, kFirstDelay, kLongestDelay);
    on_restart_();
    if (StartAndLoad(reason)) return true;
  }
}

bool Keeper::StartAndLoad(std::string* reason) {
  try {
    Start();
    process_->Ask(load_, start_timeout_);
    loaded_since_ = Clock::now();
    const std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kLoaded;
    changed_.notify_all();
    return true;
  } catch (const OrderError& error) {
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

void Keeper::End(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kEnded;
  failure_ = reason;
  changed_.notify_all();
}

// Returns false when it is to stop.
bool Keeper::Pause(milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopping_; });
}

ReplyMessage Keeper::AskStarted(const OrderMessage& order) {
  std::shared_ptr<WorkerProcess> process;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::kStarting; });
    if (state_ == State::kEnded) throw ProcessError(failure_);
    process = process_;
  }
  return process->Ask(order, start_timeout_);
}

std::shared_ptr<WorkerProcess> Keeper::Loaded(Clock::time_point deadline, const std::function<bool()>& wanted) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t failures = failures_;
  while (state_ == State::kStarting && failures_ == failures) {
    if (Clock::now() > deadline || !wanted()) throw ProcessError("its worker process is still being started again");
    changed_.wait_for(lock, kLookEvery);
  }
  if (state_ != State::kLoaded) throw ProcessError(failure_);
  return process_;
}

}  // namespace pytriton
