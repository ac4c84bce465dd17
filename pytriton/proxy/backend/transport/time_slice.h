// What the kernel is told of threads that others wait for. Twin of `scheduling.py`.
#pragma once

namespace pytriton {

// Has the calling thread run soon after it is woken, and lose little time when it yields: it asks for turns of 100 us,
// which are no more of the processor's time. Linux 6.12 and later heed it. Nothing is asked for where the thread has a
// policy or a nice value of its own. Returns whether it was asked for.
bool RequestShortTimeSlice();

}  // namespace pytriton
