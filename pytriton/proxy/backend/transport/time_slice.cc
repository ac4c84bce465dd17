#include "transport/time_slice.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/switches.h"

namespace pytriton {

namespace {

constexpr uint64_t kSliceNs = 100'000;

// `struct sched_attr` in its first version, which no header of glibc has before 2.41.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 1;  // reset on fork: threads that this one starts have the usual slice
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = kSliceNs;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

}  // namespace

bool RequestShortTimeSlice() {
  if (IsSwitchedOff("PYTRITON_TIME_SLICE")) return false;
  if (sched_getscheduler(0) != SCHED_OTHER || getpriority(PRIO_PROCESS, 0) != 0) return false;
  const Attributes attributes;
  return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

}  // namespace pytriton
