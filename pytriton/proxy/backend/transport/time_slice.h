// Short time slices for threads on the hot path. Counterpart of `transport/time_slice.py`.
#pragma once

namespace pytriton {

// Requests a short time slice (100 us) for the calling thread, so that it runs soon after it is woken; it does not get
// more processor time. Takes effect on Linux 6.12 and later. A thread with its own scheduling policy or nice value is
// not changed. PYTRITON_TIME_SLICE=0 in the environment disables it. Returns whether the slice was set.
bool RequestShortTimeSlice();

}  // namespace pytriton
