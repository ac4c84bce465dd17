#include "model_instance/request_wait.h"

#include <utility>

#include "base/clock.h"

namespace pytriton {

bool RequestWait::Begin(size_t batch_size) {
  begin_ns_ = MonotonicNs();
  spin_.ObserveBatchSize(batch_size);
  is_spinning_ = spin_.Begin();
  return is_spinning_;
}

bool RequestWait::GoOn() {
  if (!is_spinning_) return false;
  if (!spin_.GoOn()) Sleep();
  return is_spinning_;
}

void RequestWait::Sleep() { StopSpinning(false); }

void RequestWait::End() {
  if (begin_ns_ == 0) return;
  StopSpinning(true);
  spin_.RecordWait(static_cast<int64_t>(MonotonicNs() - begin_ns_));
  begin_ns_ = 0;
}

void RequestWait::StopSpinning(bool has_arrived) {
  if (std::exchange(is_spinning_, false)) spin_.End(has_arrived);
}

}  // namespace pytriton
