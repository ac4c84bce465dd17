#include "triton/workarounds/warmup_guard.h"

#include <cerrno>
#include <csignal>
#include <ctime>

namespace pytriton {

namespace {

constexpr int kSignal = SIGURG;  // otherwise unused, and ignored by default
constexpr timespec kPause = {0, 100'000'000};

void Pause(int) {
  const int error = errno;
  nanosleep(&kPause, nullptr);
  errno = error;
}

void Install() {
  struct sigaction action = {};
  action.sa_handler = Pause;
  action.sa_flags = SA_RESTART;
  sigaction(kSignal, &action, nullptr);
}

}  // namespace

void WarmupGuard::Done(bool succeeded) {
  int left = left_.load(std::memory_order_relaxed);
  while (left > 0 && !left_.compare_exchange_weak(left, succeeded ? left - 1 : 0)) {
  }
  if (left == 0 || succeeded) return;  // the loading thread exits once the model is loaded
  static const bool installed = (Install(), true);
  static_cast<void>(installed);
  pthread_kill(loader_, kSignal);
}

}  // namespace pytriton
