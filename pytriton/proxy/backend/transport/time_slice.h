// Short time slices for threads on the hot path. Twin of `transport/time_slice.py`.
#pragma once

namespace pytriton {

// Requests a short time slice (100 us) for the calling thread, so that it runs soon after it is woken; it gets no more
// of the processor's time. Takes effect on Linux 6.12 and later. A thread with its own scheduling policy or nice value
// is left alone. PYTRITON_TIME_SLICE=0 in the environment switches it off. Returns whether the slice was set.
bool RequestShortTimeSlice();

}  // namespace pytriton
