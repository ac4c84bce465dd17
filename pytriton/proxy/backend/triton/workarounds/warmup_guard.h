// Workaround for Triton (failed-warmups): a failed warm-up may crash the server.
#pragma once

#include <pthread.h>

#include <atomic>

namespace pytriton {

// Triton's loading thread waits for the warm-up, which runs in the instance's thread. When the warm-up fails, the
// loading thread destroys the instance at once, and reads a queue that the instance's thread has yet to write:
// occasionally, the server crashes in TritonBackendThread::StopBackendThread. So the loading thread is delayed for a
// moment.
class WarmupGuard {
 public:
  // To be constructed in the loading thread; `batches` is the number of batches in the warm-up.
  explicit WarmupGuard(int batches) : loader_(pthread_self()), left_(batches) {}

  // To be called for each batch, before a failure is reported to Triton; from any thread.
  void Done(bool succeeded);

 private:
  const pthread_t loader_;
  std::atomic<int> left_;
};

}  // namespace pytriton
