// Loaded into tritonserver by the launcher, before any other library.
#include <sys/prctl.h>

#include <cstdlib>

#include "guard/arguments.h"
#include "guard/gate.h"

namespace {

// Triton has two sleeping threads per model. Linux 6.16 and later finds the threads to wake in a hash table of the
// process, which has 4 to 8 slots per processor by default. With a thousand models, that took a tenth of the server's
// time. An older kernel has a large table for all processes, and ignores this.
void HaveManySleepingThreads() {
  constexpr int kFutexHash = 78;          // PR_FUTEX_HASH
  constexpr unsigned long kSetSlots = 1;  // NOLINT(google-runtime-int): PR_FUTEX_HASH_SET_SLOTS
  constexpr unsigned long kSlots = 4096;  // NOLINT(google-runtime-int): of 64 bytes
  prctl(kFutexHash, kSetSlots, kSlots, 0UL, 0UL);
}

// Runs before the server's `main`, with its arguments.
__attribute__((constructor)) void Start(int /*count*/, char** arguments) {
  pytriton::guard::FillInSecrets(arguments);
  pytriton::guard::OpenGate();
  HaveManySleepingThreads();
  // Programs that the server starts must not load the guard.
  const char* usual = std::getenv("PYTRITON_PRELOAD");
  usual == nullptr || *usual == '\0' ? unsetenv("LD_PRELOAD") : setenv("LD_PRELOAD", usual, 1);
  unsetenv("PYTRITON_PRELOAD");
}

}  // namespace
