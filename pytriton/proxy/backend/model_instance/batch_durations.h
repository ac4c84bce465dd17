// How long the worker takes for batches, and whether the next batch should therefore wait for the previous one, so that
// requests that arrive meanwhile are served together.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pytriton {

class BatchDurations {
 public:
  // The longest duration that is short: too short for a coroutine to have waited for anything but the processor.
  static constexpr int64_t ShortNs(size_t request_count) {
    return 400'000 + 30'000 * static_cast<int64_t>(request_count);
  }

  // Records how long a batch took, and whether the inference callable has called other models; called by one thread at
  // a time.
  void Record(int64_t duration_ns, size_t request_count, bool has_called) {
    const bool were_short = average_excess_ns_ < 0 && pause_ == 0;
    const int64_t short_ns = ShortNs(request_count);
    average_excess_ns_ += (std::min(duration_ns, kMaxExcess * short_ns) - short_ns - average_excess_ns_) / 32;
    pause_ = std::max(pause_ - 1, 0);
    if (were_short && average_excess_ns_ >= 0) {  // they are only short while several are served at a time
      pause_ = next_pause_;
      next_pause_ = std::min(2 * next_pause_, kMaxPause);
    } else if (were_short) {
      next_pause_ = std::max(next_pause_ - 1, kMinPause);
    }
    // Large batches gain little, unless another model shares the processor with the callable.
    if (request_count > kFewRequests && !has_called) pause_ = std::max(pause_, kLargePause);
    should_wait_ = average_excess_ns_ < 0 && pause_ == 0;
  }
  // Whether the next batch should wait; from any thread.
  bool ShouldWait() const { return should_wait_; }

 private:
  static constexpr int64_t kMaxExcess = 4;
  static constexpr int kMinPause = 32;
  static constexpr int kMaxPause = 1024;
  static constexpr int kLargePause = 256;
  static constexpr size_t kFewRequests = 16;

  int64_t average_excess_ns_ = ShortNs(0);  // moving average of the difference to a short duration
  int pause_ = 0;                           // remaining batches until one may wait again
  int next_pause_ = kMinPause;
  std::atomic<bool> should_wait_{false};
};

}  // namespace pytriton
