// gRPC's notifications of the end of a stream.
#pragma once

namespace pytriton::guard {

// Keeps responses away from before the thread that handles streams gets a notification until it has handled it. Returns
// false if gRPC's code was not found in the program.
bool WatchNotifications();

}  // namespace pytriton::guard
