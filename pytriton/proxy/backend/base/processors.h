// The processors that this process may use.
#pragma once

#include <sched.h>

namespace pytriton {

// Returns how many processors this process may use; 0 if that is unknown.
inline int ProcessorCount() {
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof(processors), &processors) == 0 ? CPU_COUNT(&processors) : 0;
}

}  // namespace pytriton
