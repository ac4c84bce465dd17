// The wait of an instance's thread for the next request: for a short while, Triton looks for one again and again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/adaptive_spin.h"

namespace pytriton {

class RequestWait {
 public:
  RequestWait() = default;
  ~RequestWait() { Sleep(); }
  RequestWait(const RequestWait&) = delete;
  RequestWait& operator=(const RequestWait&) = delete;

  // Begins after a batch of so many requests. Returns whether Triton should look again before the thread sleeps.
  bool Begin(size_t batch_size);
  // Yields the processor. Returns whether Triton should look once more.
  bool GoOn();
  // The thread sleeps.
  void Sleep();
  // A request has arrived, whether the thread waited for it or not.
  void End();

 private:
  void StopSpinning(bool has_arrived);

  AdaptiveSpin spin_{AdaptiveSpin::For::kRequest};
  bool is_spinning_ = false;
  uint64_t begin_ns_ = 0;  // 0 while it does not wait
};

}  // namespace pytriton
