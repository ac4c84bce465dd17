// What a thread of the HTTP front end needs to know of the queue of commands that it reads.
#pragma once

namespace pytriton::guard {

// The file descriptor by which the calling thread is woken for commands; -1 for a thread that has read none yet.
int CommandsFd();

// Has commands wake the calling thread. Returns whether it may sleep: false if commands are waiting already.
bool PrepareToSleep();

// From now on, commands do not wake the calling thread: it looks for them itself. Returns whether any are waiting.
bool StayAwake();

}  // namespace pytriton::guard
