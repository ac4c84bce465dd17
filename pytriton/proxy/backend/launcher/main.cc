// Starts tritonserver, or a worker process, so that it cannot outlive the process that starts it: `pytriton-launch
// PARENT PROGRAM [ARG...]`.
//
// The kernel kills the program when the thread that started it ends, even by SIGKILL. The launcher itself is replaced
// by the program.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// The stack limit before the server's was raised.
constexpr char kUsualStack[] = "PYTRITON_STACK_LIMIT";

// Workaround for Triton 2.51 (and earlier): the HTTP front end copies bodies with the content type of a form, which is
// the default of `curl -d` and urllib, to its stack. 4 MB of them crash a server whose threads have the usual 8 MB.
// Only the used part of a stack takes memory.
void AllowDeepStacks() {
  constexpr rlim_t kStack = rlim_t{256} << 20;
  rlimit limit = {};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStack) return;
  setenv(kUsualStack, std::to_string(limit.rlim_cur).c_str(), 1);
  limit.rlim_cur = std::min(kStack, limit.rlim_max);
  setrlimit(RLIMIT_STACK, &limit);
}

// Threads of a worker process do not need the server's address space for stacks.
void RestoreStacks() {
  const char* usual = std::getenv(kUsualStack);
  rlimit limit = {};
  if (usual == nullptr || getrlimit(RLIMIT_STACK, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(std::strtoull(usual, nullptr, 10), limit.rlim_max);
  setrlimit(RLIMIT_STACK, &limit);
  unsetenv(kUsualStack);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s PARENT PROGRAM [ARG...]\n", argv[0]);
    return 2;
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    std::fprintf(stderr, "%s: cannot tie the program to its parent: %s\n", argv[0], std::strerror(errno));
    return 126;
  }
  // The parent may have exited before the process was tied to it.
  if (getppid() != std::atoi(argv[1])) return 125;
  const char* slash = std::strrchr(argv[2], '/');
  const bool is_server = std::strcmp(slash == nullptr ? argv[2] : slash + 1, "tritonserver") == 0;
  is_server ? AllowDeepStacks() : RestoreStacks();
  execv(argv[2], argv + 2);
  std::fprintf(stderr, "%s: cannot run %s: %s\n", argv[0], argv[2], std::strerror(errno));
  return 127;
}
