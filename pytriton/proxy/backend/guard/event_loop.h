// The event loops of the HTTP front end.
#pragma once

namespace pytriton::guard {

// Notes that a file descriptor is being closed: its number may become that of another connection.
void ForgetInterest(int fd);

}  // namespace pytriton::guard
