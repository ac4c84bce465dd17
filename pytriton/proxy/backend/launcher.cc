// Starts tritonserver, or a worker process, such that it cannot outlive the process that wanted it: `pytriton-launch
// PARENT PROGRAM [ARG...]`.
//
// The kernel kills the program when the thread that started it ends, SIGKILL of its process included. Nothing else
// remains: the launcher becomes the program.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// The server's HTTP front end copies bodies to its stack when they claim to be forms, as `curl -d` and urllib do unless
// told otherwise: 4 MB of them end a server whose threads have the usual 8 MB. Only what is used takes memory.
void AllowDeepStacks() {
  constexpr rlim_t kStack = rlim_t{256} << 20;
  rlimit limit = {};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStack) return;
  limit.rlim_cur = std::min(kStack, limit.rlim_max);
  setrlimit(RLIMIT_STACK, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s PARENT PROGRAM [ARG...]\n", argv[0]);
    return 2;
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    std::fprintf(stderr, "%s: cannot tie the server to its parent: %s\n", argv[0], std::strerror(errno));
    return 126;
  }
  // The parent may have gone before the tie was made.
  if (getppid() != std::atoi(argv[1])) return 125;
  const char* slash = std::strrchr(argv[2], '/');
  if (std::strcmp(slash == nullptr ? argv[2] : slash + 1, "tritonserver") == 0) AllowDeepStacks();
  execv(argv[2], argv + 2);
  std::fprintf(stderr, "%s: cannot run %s: %s\n", argv[0], argv[2], std::strerror(errno));
  return 127;
}
