// Starts tritonserver, or a worker process, so that it cannot outlive the process that starts it: `pytriton-launch
// PARENT PROGRAM [ARG...]`.
//
// The kernel kills the program when the thread that started it ends, even by SIGKILL. The launcher itself is replaced
// by the program.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
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

#include "base/heap_settings.h"
#include "base/switches.h"
#include "base/workarounds.h"

namespace {

// The stack limit before the server's was raised.
constexpr char kUsualStack[] = "PYTRITON_STACK_LIMIT";

// The limit on open files before the server's was raised.
constexpr char kUsualFiles[] = "PYTRITON_FILE_LIMIT";

// The preloaded libraries before the guard was added.
constexpr char kUsualPreload[] = "PYTRITON_PRELOAD";

// Whether the system reserves memory for a whole stack, of which only a part is ever used.
bool ReservesStacks() {
  int mode = 0;
  if (std::FILE* file = std::fopen("/proc/sys/vm/overcommit_memory", "re")) {
    if (std::fscanf(file, "%d", &mode) != 1) mode = 0;
    std::fclose(file);
  }
  rlimit limit = {};
  return mode == 2 || (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY);
}

// Raises the soft limit of a resource to `wanted`, or to the hard limit, and notes the usual one in the environment.
void Raise(int resource, rlim_t wanted, const char* usual) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur >= wanted) return;
  setenv(usual, std::to_string(limit.rlim_cur).c_str(), 1);
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(resource, &limit);
}

// Undoes `Raise`, in a worker process.
void Restore(int resource, const char* usual) {
  const char* value = std::getenv(usual);
  rlimit limit = {};
  if (value == nullptr || getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(std::strtoull(value, nullptr, 10), limit.rlim_max);
  setrlimit(resource, &limit);
  unsetenv(usual);
}

// Lets the backend learn how its worker processes end. A server that inherits from its parent that SIGCHLD is ignored
// cannot: the kernel forgets each process as soon as it ends.
void KeepEndedProcesses() { std::signal(SIGCHLD, SIG_DFL); }

// Workaround for Triton (deep-stacks): the HTTP front end copies bodies with the content type of a form, which is
// the default of `curl -d` and urllib, to its stack, and parses each level of nested JSON in a nested call. A few
// megabytes of either crash a server whose threads have the usual 8 MB. Only the used part of a stack takes memory.
void AllowDeepStacks() {
  if (pytriton::NeedsWorkaround("deep-stacks") && !ReservesStacks()) Raise(RLIMIT_STACK, rlim_t{1} << 30, kUsualStack);
}

// Each connection is a file, and many systems allow a process 1,024 by default.
void AllowManyConnections() { Raise(RLIMIT_NOFILE, rlim_t{1} << 20, kUsualFiles); }

// Whether the processor is AMD's Zen 3 or later.
bool IsRecentAmd() {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx || ecx != signature_AMD_ecx) return false;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kZen3Family = 0x19;
  return ((eax >> 8) & 0xf) + ((eax >> 20) & 0xff) >= kZen3Family;
#else
  return false;
#endif
}

// Has glibc copy memory without the instruction REP MOVSB, which takes up to seven times as long on these processors,
// depending on the alignment. glibc 2.39 and later do not use it there.
void AvoidSlowCopies() {
  constexpr char kVariable[] = "GLIBC_TUNABLES";
  constexpr char kThreshold[] = "glibc.cpu.x86_rep_movsb_threshold";
  if (!IsRecentAmd()) return;
  const char* usual = std::getenv(kVariable);
  std::string tunables = usual == nullptr ? "" : usual;
  if (tunables.find(kThreshold) != std::string::npos) return;
  if (!tunables.empty()) tunables += ":";
  setenv(kVariable, (tunables + kThreshold + "=0x7fffffffffff").c_str(), 1);
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool IsReadable(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

bool AreOfOneLibrary(const char* function, const char* other) {
  Dl_info info = {};
  Dl_info other_info = {};
  return dladdr(dlsym(RTLD_DEFAULT, function), &info) != 0 && dladdr(dlsym(RTLD_DEFAULT, other), &other_info) != 0 &&
         info.dli_fbase == other_info.dli_fbase;
}

// Whether the user preloads an allocator, such as jemalloc: with two, one would free what the other has allocated.
bool HasOtherAllocator() { return !AreOfOneLibrary("malloc", "gnu_get_libc_version"); }

// Loads libraries that lie next to the launcher into the server: the guard and, after the user's preloaded libraries,
// an allocator for the bundled server, unless these have one. PYTRITON_GUARD=0 and PYTRITON_ALLOCATOR=0 disable them.
void Preload(const std::string& launcher, const std::string& program) {
  const std::string guard = FolderOf(launcher) + "libpytriton_guard.so";
  const std::string allocator = FolderOf(program) + "libmimalloc.so";
  if (pytriton::IsSwitchedOff("PYTRITON_GUARD") || !IsReadable(guard)) return;
  const char* usual = std::getenv("LD_PRELOAD");
  setenv(kUsualPreload, usual == nullptr ? "" : usual, 1);
  std::string preload = guard;
  if (usual != nullptr && *usual != '\0') preload += std::string(":") + usual;
  if (!pytriton::IsSwitchedOff("PYTRITON_ALLOCATOR") && !pytriton::IsHeapConfigured() && !HasOtherAllocator() &&
      IsReadable(allocator)) {
    preload += ":" + allocator;
    setenv("MIMALLOC_ALLOW_THP", "0", 0);  // 2 MB for each piece of a heap is too much for an idle server
    // Under load, freed memory is needed again within seconds. An idle server returns it itself.
    setenv("MIMALLOC_PURGE_DELAY", "10000", 0);
  }
  setenv("LD_PRELOAD", preload.c_str(), 1);
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
  if (is_server) {
    AllowDeepStacks();
    AllowManyConnections();
    KeepEndedProcesses();
    AvoidSlowCopies();
    Preload(argv[0], argv[2]);
  } else {
    Restore(RLIMIT_STACK, kUsualStack);
    Restore(RLIMIT_NOFILE, kUsualFiles);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);  // by the server's allocator
  }
  execv(argv[2], argv + 2);
  std::fprintf(stderr, "%s: cannot run %s: %s\n", argv[0], argv[2], std::strerror(errno));
  return 127;
}
