// The gate: whether the server is ready and accepts requests. The controller opens and closes it.
//
// It is a byte at the start of memory that the controller shares with the server. Counterpart of `server/gate.py`.
#pragma once

#include <cstdint>

namespace pytriton::guard {

enum class Gate : unsigned char {
  kServing = 0,   // the server's own readiness
  kStarting = 1,  // not ready
  kDraining = 2,  // not ready, but requests are accepted
  kStopping = 3,  // not ready, and requests are refused
};

// Maps the gate's memory, whose file descriptor is the value of the environment variable PYTRITON_GATE. Without it, the
// gate is always kServing.
void OpenGate();

Gate CurrentGate();

// Returns whether the controller reports the model as not ready: a call of its inference callable hangs, or none of its
// instances can be restarted. Without a name, whether it reports any model so.
bool IsUnready(const char* model = nullptr);

// Returns the number of calls that have hung so far, which may grow at any time.
uint64_t Hangs();

}  // namespace pytriton::guard
