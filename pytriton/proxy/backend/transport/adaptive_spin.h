// Waiting for what comes soon, by asking for it again and again: a thread that sleeps is awake again only 20 to 50 us
// after it was woken. Twin of `spin.py`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pytriton {

// What one waits for again and again, and how long it took. Used by one thread at a time.
class AdaptiveSpin {
 public:
  // Whether the machine and the environment let anyone wait so.
  static bool IsAllowed();
  // Notes that so many requests came together. Where there are many, clients wait in line, and for a while the
  // processor has better things to do than to wait.
  void ObserveBatchSize(size_t request_count);
  bool HasBacklog() const { return backlog_ > 0; }

  // Asks `arrived` until it says yes, as long as that is likely to pay: not for long unless `begun` says that it is
  // being worked on. Returns whether it did.
  template <typename Arrived, typename Begun>
  bool Try(const Arrived& arrived, const Begun& begun) {
    if (!Begin()) return false;
    bool has_arrived = false;
    while (!has_arrived && GoOn(begun)) has_arrived = arrived();
    End(has_arrived);
    return has_arrived;
  }

  // It has come at last; so long it took, whether it was slept for or not.
  void RecordWait(int64_t waited_ns);

 private:
  static constexpr int kMinBackoff = 8;
  static constexpr int64_t kSoonNs = 60'000;

  bool Begin();
  template <typename Begun>
  bool GoOn(const Begun& begun) const {
    const int64_t now = Yield();
    return now < end_ns_ && (now < begin_ns_ + kSoonNs || begun());
  }
  int64_t Yield() const;
  void End(bool has_arrived);

  int64_t average_ns_ = INT64_MAX / 16;  // how long it takes, as a moving average
  int backlog_ = 0;                      // for so many batches
  int backoff_ = 0;                      // so many times more it is not tried
  int next_backoff_ = kMinBackoff;
  int64_t begin_ns_ = 0;
  int64_t end_ns_ = 0;
};

}  // namespace pytriton
