#include "guard/limits.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace pytriton::guard {

namespace {

constexpr std::chrono::milliseconds kPeriod(100);
constexpr int kExitStatus = 71;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  const int64_t number = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  return number > 0 ? number : otherwise;
}

// Memory of this process alone: without shared memory and files. 0 if it is unknown.
int64_t OwnBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::strtoll(line.c_str() + 8, nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

int64_t MaxInputBytes() {
  static const int64_t bytes = FromEnvironment("PYTRITON_MAX_INPUT_BYTES", int64_t{1} << 31);
  return bytes;
}

void WatchMemory() {
  const int64_t limit = FromEnvironment("PYTRITON_MEMORY_LIMIT", 0);
  if (limit == 0) return;
  std::thread([limit] {
    for (;; std::this_thread::sleep_for(kPeriod)) {
      const int64_t bytes = OwnBytes();
      if (bytes <= limit) continue;
      std::fprintf(stderr, "The server uses %lld MB, more than its limit of %lld MB, and exits.\n",
                   static_cast<long long>(bytes >> 20), static_cast<long long>(limit >> 20));
      std::fflush(stderr);
      _exit(kExitStatus);
    }
  }).detach();
}

}  // namespace pytriton::guard
