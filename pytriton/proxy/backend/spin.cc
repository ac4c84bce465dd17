#include "spin.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

namespace pytriton {

namespace {

constexpr int64_t kLongestNs = 400'000;  // what usually takes longer is slept for
constexpr int64_t kSlackNs = 20'000;
constexpr int kMostRest = 1024;
constexpr size_t kFewRequests = 2;
constexpr int kCrowdedFor = 32;  // batches, of which clients in line fill but some

std::atomic<int> spinning{0};

int64_t Time() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

int CountAllowed() {
  const char* wanted = std::getenv("PYTRITON_SPIN");
  if (wanted != nullptr && std::string(wanted) == "0") return 0;
  cpu_set_t processors;
  if (sched_getaffinity(0, sizeof(processors), &processors) != 0) return 0;
  return CPU_COUNT(&processors) / 2;
}

// So many threads of this process may spin at a time: no more than half of the processors, and none of a single one.
int Limit() {
  static const int limit = CountAllowed();
  return limit;
}

}  // namespace

bool Spin::IsAllowed() { return Limit() > 0; }

void Spin::Met(size_t request_count) {
  crowded_ = request_count > kFewRequests ? kCrowdedFor : std::max(crowded_ - 1, 0);
}

bool Spin::Begin() {
  if (IsCrowded() || usual_ns_ > kLongestNs) return false;
  if (rest_ > 0) {
    --rest_;
    return false;
  }
  if (spinning.fetch_add(1) >= Limit()) {
    --spinning;
    return false;
  }
  begin_ns_ = Time();
  end_ns_ = begin_ns_ + 2 * usual_ns_ + kSlackNs;
  return true;
}

int64_t Spin::Yield() const {
  sched_yield();  // to whoever has something to do
  return Time();
}

void Spin::End(bool has_arrived) {
  --spinning;
  if (has_arrived) {
    next_rest_ = std::max(next_rest_ / 2, kLeastRest);
  } else {
    rest_ = next_rest_;
    next_rest_ = std::min(2 * next_rest_, kMostRest);
  }
}

void Spin::Came(int64_t waited_ns) { usual_ns_ += (std::min(waited_ns, 10 * kLongestNs) - usual_ns_) / 8; }

}  // namespace pytriton
