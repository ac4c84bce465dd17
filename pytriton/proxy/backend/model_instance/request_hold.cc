#include "model_instance/request_hold.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "triton/api.h"

namespace pytriton {

void RequestHold::Begin(bool has_more) {
  if (PYTRITON_HoldRequests == nullptr) return;
  if (has_more || average_ns_ > kShortNs) return End(has_more);
  PYTRITON_HoldRequests();
  end_ns_ = MonotonicNs() + 2 * kShortNs;
}

void RequestHold::End(bool has_more) {
  const bool holds = std::exchange(end_ns_, 0) != 0;
  if (holds || has_more) PYTRITON_ReleaseRequests(has_more);
}

uint64_t RequestHold::EndIfOver() {
  if (end_ns_ != 0 && MonotonicNs() >= end_ns_) End();
  return end_ns_;
}

void RequestHold::Record(int64_t compute_ns) {
  average_ns_ += (std::clamp<int64_t>(compute_ns, 0, 10 * kShortNs) - average_ns_) / 8;
}

}  // namespace pytriton
