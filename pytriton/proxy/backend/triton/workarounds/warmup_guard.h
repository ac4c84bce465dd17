// Lets a model's warm-up fail without a crash of the server.
#pragma once

#include <pthread.h>

#include <atomic>

namespace pytriton {

// Triton's thread that loads an instance waits for the warm-up, which runs in the instance's own thread. When the
// warm-up fails, the first takes the instance apart at once, and reads a queue that the second has yet to write: Triton
// 2.51 crashes now and then (TritonBackendThread::StopBackendThread). So the first is held up for a moment.
class WarmupGuard {
 public:
  // To be made in the thread that loads the instance; `batches` is how many batches the warm-up has.
  explicit WarmupGuard(int batches) : loader_(pthread_self()), left_(batches) {}

  // To be called for each batch before Triton learns that it has failed, or once it is answered; from any thread.
  void Done(bool succeeded);

 private:
  const pthread_t loader_;
  std::atomic<int> left_;
};

}  // namespace pytriton
