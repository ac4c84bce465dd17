#include "model_instance/request_wait.h"

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

void RequestWait::Sleep() {
  if (is_spinning_) spin_.End(false);
  is_spinning_ = false;
}

void RequestWait::End() {
  if (begin_ns_ == 0) return;
  if (is_spinning_) spin_.End(true);
  is_spinning_ = false;
  spin_.RecordWait(static_cast<int64_t>(MonotonicNs() - begin_ns_));
  begin_ns_ = 0;
}

}  // namespace pytriton
