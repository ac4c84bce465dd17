#include "base/heap_settings.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

// A function of mimalloc, if the launcher has loaded it into the server to replace glibc's allocator.
extern "C" __attribute__((weak)) void mi_collect(bool force);

namespace pytriton {

namespace {

constexpr int kMiB = 1 << 20;
constexpr int kLargestFromHeap = 32 * kMiB;  // the most that glibc accepts
constexpr int kKept = 256 * kMiB;            // retained at the end of a heap
constexpr int kMore = 16 * kMiB;             // a heap grows by this much at a time

}  // namespace

bool IsHeapConfigured() {
  constexpr const char* kVariables[] = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"};
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return (tunables != nullptr && std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos) ||
         std::any_of(std::begin(kVariables), std::end(kVariables),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

void RetainFreedMemory() {
  if (IsHeapConfigured()) return;
  mallopt(M_MMAP_THRESHOLD, kLargestFromHeap);
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_TOP_PAD, kMore);
}

void ReturnFreedMemory() {
  if (mi_collect != nullptr) return mi_collect(true);
  malloc_trim(0);
}

}  // namespace pytriton
