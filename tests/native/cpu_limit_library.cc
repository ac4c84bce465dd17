// The C++ half of the CPU limit, for Python to call.
#include "transport/cpu_limit.h"

// Returns the limit; -1 if there is none.
extern "C" double cpu_limit(const char* root) { return pytriton::CpuLimit(root).value_or(-1); }
