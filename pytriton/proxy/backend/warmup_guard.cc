#include "warmup_guard.h"

#include <cerrno>
#include <csignal>
#include <ctime>

namespace pytriton {

namespace {

constexpr int kSignal = SIGURG;  // which nobody else uses, and which is ignored where there is no handler
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
  if (left_ == 0) return;  // the model is loaded, and the thread that loaded it is gone
  --left_;
  if (succeeded) return;
  left_ = 0;
  static const bool installed = (Install(), true);
  static_cast<void>(installed);
  pthread_kill(loader_, kSignal);
}

}  // namespace pytriton
