// What programs that stand in for the HTTP front end share.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace front_end {

// As the front end writes it.
struct __attribute__((packed)) Command {
  char stop;
  void* argument;
  void (*call)(void* thread, void* argument, void* shared);
};

[[noreturn]] inline void Fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::_Exit(1);
}

}  // namespace front_end
