#include "transport/adaptive_spin.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/switches.h"

namespace pytriton {

namespace {

constexpr int64_t kMaxWaitNs = 400'000;  // longer waits are not worth spinning for
constexpr int64_t kSlackNs = 20'000;
constexpr int kMaxBackoff = 1024;
constexpr size_t kFewRequests = 2;
constexpr int kBacklogBatches = 32;  // batches after a large one, before spinning is tried again

std::atomic<int> spinning{0};

int64_t Now() { return static_cast<int64_t>(MonotonicNs()); }

int CountAllowed() {
  if (IsSwitchedOff("PYTRITON_SPIN")) return 0;
  cpu_set_t processors;
  if (sched_getaffinity(0, sizeof(processors), &processors) != 0) return 0;
  return CPU_COUNT(&processors) / 2;
}

// The number of threads of this process that may spin at a time: at most half of the processors.
int Limit() {
  static const int limit = CountAllowed();
  return limit;
}

}  // namespace

bool AdaptiveSpin::IsAllowed() { return Limit() > 0; }

void AdaptiveSpin::ObserveBatchSize(size_t request_count) {
  backlog_ = request_count > kFewRequests ? kBacklogBatches : std::max(backlog_ - 1, 0);
}

bool AdaptiveSpin::Begin() {
  if (HasBacklog() || average_ns_ > kMaxWaitNs) return false;
  if (backoff_ > 0) {
    --backoff_;
    return false;
  }
  if (spinning.fetch_add(1) >= Limit()) {
    --spinning;
    return false;
  }
  begin_ns_ = Now();
  end_ns_ = begin_ns_ + 2 * average_ns_ + kSlackNs;
  return true;
}

int64_t AdaptiveSpin::Yield() const {
  sched_yield();  // to any thread that is ready to run
  return Now();
}

void AdaptiveSpin::End(bool has_arrived) {
  --spinning;
  if (has_arrived) {
    next_backoff_ = std::max(next_backoff_ / 2, kMinBackoff);
  } else {
    backoff_ = next_backoff_;
    next_backoff_ = std::min(2 * next_backoff_, kMaxBackoff);
  }
}

void AdaptiveSpin::RecordWait(int64_t waited_ns) {
  average_ns_ += (std::min(waited_ns, 10 * kMaxWaitNs) - average_ns_) / 8;
}

}  // namespace pytriton
