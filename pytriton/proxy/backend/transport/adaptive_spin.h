// Adaptive busy-waiting: polls for a short while before sleeping, since a sleeping thread runs again only 20 to 50 us
// after it is woken. Counterpart of `transport/adaptive_spin.py`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pytriton {

// Waits for a recurring event, and learns how long it takes. Used by one thread at a time.
class AdaptiveSpin {
 public:
  enum class For {
    kResult,
    kRequest,  // only while workers leave processors free
  };

  explicit AdaptiveSpin(For purpose = For::kResult) : purpose_(purpose) {}

  // Whether the machine and the environment allow spinning.
  static bool IsAllowed();
  // The maximum number of threads of a process that may spin for results at a time, and of those that may for requests.
  static int MaxSpinning(int processors, std::optional<double> cpu_limit);
  // Observes the number of requests in a batch. After a large one clients are queueing, and for a while the processor
  // has better things to do than to spin.
  void ObserveBatchSize(size_t request_count);

  // Polls `arrived` until it returns true, for as long as that is likely to pay off: not for long unless `begun`
  // returns true, that is, the other side is working on it. Returns whether the event has happened.
  template <typename Arrived, typename Begun>
  bool Try(const Arrived& arrived, const Begun& begun) {
    if (!Begin()) return false;
    bool has_arrived = false;
    while (!has_arrived && GoOn(begun)) has_arrived = arrived();
    End(has_arrived);
    return has_arrived;
  }

  // The same in steps, for callers that poll elsewhere: `Begin` returns whether to spin at all, `GoOn` yields the
  // processor and returns whether to poll once more, and `End` is called after either the event or the last poll.
  bool Begin();
  bool GoOn();
  void End(bool has_arrived);

  // Records how long the event took, spinning or sleeping.
  void RecordWait(int64_t waited_ns);

 private:
  static constexpr int kMinBackoff = 8;
  static constexpr int kMinContendedBackoff = 32;
  static constexpr int64_t kSoonNs = 60'000;

  // The number of processors that are left to workers.
  int Reserved() const;
  template <typename Begun>
  bool GoOn(const Begun& begun) {
    const int64_t now = Yield();
    return now < end_ns_ && (now < begin_ns_ + kSoonNs || begun());
  }
  // Yields the processor to any thread that is ready to run; returns the time after that.
  int64_t Yield();

  const For purpose_;
  int64_t average_ns_ = INT64_MAX / 16;  // moving average of the waiting time
  int backlog_ = 0;                      // remaining batches until the backlog is assumed to be gone
  int backoff_ = 0;                      // remaining waits until spinning is tried again
  int next_backoff_ = kMinBackoff;
  int next_contended_backoff_ = kMinContendedBackoff;
  int64_t begin_ns_ = 0;
  int64_t polled_ns_ = 0;
  bool is_contended_ = false;  // whether other threads have kept the processor for long
  int64_t end_ns_ = 0;
};

// A batch that a worker serves, which takes a processor.
class BusyWorker {
 public:
  BusyWorker();
  ~BusyWorker();
  BusyWorker(const BusyWorker&) = delete;
  BusyWorker& operator=(const BusyWorker&) = delete;
};

}  // namespace pytriton
