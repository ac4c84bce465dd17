// Loaded into tritonserver by the launcher, before any other library.
#include <cstdlib>

#include "guard/gate.h"

namespace {

// Runs before the server's `main`.
__attribute__((constructor)) void Start() {
  pytriton::guard::OpenGate();
  // Programs that the server starts do without the guard.
  const char* usual = std::getenv("PYTRITON_PRELOAD");
  usual == nullptr || *usual == '\0' ? unsetenv("LD_PRELOAD") : setenv("LD_PRELOAD", usual, 1);
  unsetenv("PYTRITON_PRELOAD");
}

}  // namespace
