// Keeps requests for the instance that is about to end a short batch, where the server would wake another instance.
#pragma once

#include <cstdint>

namespace pytriton {

// Of one instance of several. With short batches, more instances only make smaller batches, each of which costs a
// wake-up on either side; requests that wait for the end of a batch are served together, and sooner.
class RequestHold {
 public:
  // A batch begins; `has_more` if requests were left out of it.
  void Begin(bool has_more);
  // The batch is no short one.
  void End() { End(false); }
  // The same once it has taken too long for that. Returns when that will be, on the monotonic clock; 0 if it has ended.
  uint64_t EndIfOver();
  // Records how long the inference callable has taken.
  void Record(int64_t compute_ns);

 private:
  void End(bool has_more);

  static constexpr int64_t kShortNs = 100'000;  // about what it costs to wake an instance and its worker

  int64_t average_ns_ = 0;
  uint64_t end_ns_ = 0;  // 0 while it does not hold
};

}  // namespace pytriton
