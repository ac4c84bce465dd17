// The queue of commands of a thread of the HTTP front end, as that thread sees it.
#pragma once

namespace pytriton::guard {

// The file descriptor that wakes the calling thread for commands; -1 for a thread that has read none yet.
int CommandsFd();

// Returns whether commands are waiting for the calling thread. If none are and it is about to sleep, the next one wakes
// it; otherwise, it must check again before it sleeps.
bool HasCommands(bool about_to_sleep);

}  // namespace pytriton::guard
