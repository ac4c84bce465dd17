#include "transport/adaptive_spin.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/processors.h"
#include "base/switches.h"
#include "transport/cpu_limit.h"

namespace pytriton {

namespace {

constexpr int64_t kMaxWaitNs = 400'000;  // longer waits are not worth spinning for
constexpr int64_t kSlackNs = 20'000;
constexpr int kMaxBackoff = 1024;
constexpr int64_t kLongYieldNs = 1'000'000;
constexpr size_t kFewRequests = 16;
constexpr int kBacklogBatches = 256;  // batches after a large one, before spinning is tried again

std::atomic<int> spinning_for_results{0};
std::atomic<int> spinning_for_requests{0};
std::atomic<int> busy_workers{0};

std::atomic<int>& Spinning(AdaptiveSpin::For purpose) {
  return purpose == AdaptiveSpin::For::kResult ? spinning_for_results : spinning_for_requests;
}

int64_t Now() { return static_cast<int64_t>(MonotonicNs()); }

int CountAllowed() {
  if (IsSwitchedOff("PYTRITON_SPIN")) return 0;
  return AdaptiveSpin::MaxSpinning(ProcessorCount(), CpuLimit());
}

int Limit() {
  static const int limit = CountAllowed();
  return limit;
}

}  // namespace

bool AdaptiveSpin::IsAllowed() { return Limit() > 0; }

int AdaptiveSpin::MaxSpinning(int processors, std::optional<double> cpu_limit) {
  if (cpu_limit.has_value() && *cpu_limit < processors) {
    // Once spinning had used up the limit, the kernel would throttle all threads. It leaves a processor to others, and
    // half of the rest to the client's process.
    processors = std::max(0, static_cast<int>(*cpu_limit) - 1);
  }
  return processors / 2;
}

void AdaptiveSpin::ObserveBatchSize(size_t request_count) {
  backlog_ = request_count > kFewRequests ? kBacklogBatches : std::max(backlog_ - 1, 0);
}

bool AdaptiveSpin::Begin() {
  if (backlog_ > 0 || average_ns_ > kMaxWaitNs) return false;
  if (backoff_ > 0) {
    --backoff_;
    return false;
  }
  if (Spinning(purpose_).fetch_add(1) >= Limit() - Reserved()) {
    --Spinning(purpose_);
    return false;
  }
  begin_ns_ = polled_ns_ = Now();
  end_ns_ = begin_ns_ + 2 * average_ns_ + kSlackNs;
  return true;
}

bool AdaptiveSpin::GoOn() { return Yield() < end_ns_ && Spinning(purpose_) <= Limit() - Reserved(); }

int AdaptiveSpin::Reserved() const { return purpose_ == For::kRequest ? busy_workers.load() : 0; }

int64_t AdaptiveSpin::Yield() {
  sched_yield();
  const int64_t now = Now();
  is_contended_ = is_contended_ || now - polled_ns_ > kLongYieldNs;
  return polled_ns_ = now;
}

void AdaptiveSpin::End(bool has_arrived) {
  --Spinning(purpose_);
  if (std::exchange(is_contended_, false)) {
    // A thread that sleeps gets the processor from other programs sooner than one that yields it.
    backoff_ = next_contended_backoff_;
    next_contended_backoff_ = std::min(4 * next_contended_backoff_, kMaxBackoff);
  } else if (has_arrived) {
    next_backoff_ = std::max(next_backoff_ / 2, kMinBackoff);
    next_contended_backoff_ = std::max(next_contended_backoff_ / 2, kMinContendedBackoff);
  } else {
    backoff_ = next_backoff_;
    next_backoff_ = std::min(2 * next_backoff_, kMaxBackoff);
  }
}

void AdaptiveSpin::RecordWait(int64_t waited_ns) {
  average_ns_ += (std::min(waited_ns, 10 * kMaxWaitNs) - average_ns_) / 8;
}

BusyWorker::BusyWorker() { ++busy_workers; }

BusyWorker::~BusyWorker() { --busy_workers; }

}  // namespace pytriton
