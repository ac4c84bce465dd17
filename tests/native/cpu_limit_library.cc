// The C++ half of the CPU limit, for Python to call.
#include <optional>

#include "transport/adaptive_spin.h"
#include "transport/cpu_limit.h"

extern "C" {

// Returns the limit; -1 if there is none.
double cpu_limit(const char* root) { return pytriton::CpuLimit(root).value_or(-1); }

// A negative limit is none.
int max_spinning(int processors, double limit) {
  return pytriton::AdaptiveSpin::MaxSpinning(processors, limit < 0 ? std::nullopt : std::optional<double>(limit));
}
}
