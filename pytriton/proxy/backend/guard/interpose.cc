#include "guard/interpose.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

namespace pytriton::guard {

namespace {

struct Range {
  uintptr_t first = 0;
  uintptr_t last = 0;
};

// The program is the first object that the loader lists.
int FindProgram(dl_phdr_info* info, size_t, void* found) {
  auto* range = static_cast<Range*>(found);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const uintptr_t start = info->dlpi_addr + segment.p_vaddr;
    if (range->last == 0) range->first = start;
    range->last = start + segment.p_memsz;
  }
  return 1;
}

Range ProgramText() {
  Range range;
  dl_iterate_phdr(FindProgram, &range);
  return range;
}

}  // namespace

void* NextDefinition(const char* name) { return dlsym(RTLD_NEXT, name); }

bool IsInProgram(const void* return_address) {
  static const Range text = ProgramText();
  const auto address = reinterpret_cast<uintptr_t>(return_address);
  return text.first <= address && address < text.last;
}

}  // namespace pytriton::guard
