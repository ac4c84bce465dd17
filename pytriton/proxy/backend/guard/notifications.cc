// Workaround for Triton (ending-streams): the front end notes that a stream has ended before it locks anything. A last
// response that is being given in that moment is handled as that of a stream that was cancelled, and the front end as
// if it had cancelled it: it releases the request twice. So responses are kept away before the front end gets the
// notification. Nothing is called in that moment but gRPC's own code, which is part of the program.
#include "guard/notifications.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "guard/program_symbols.h"
#include "guard/streams.h"

namespace pytriton::guard {

namespace {

// A member function of grpc::ServerContextBase::CompletionOp, the operation whose end is such a notification. It is
// called by the thread that gets the notification, and returns whether there is one.
using Finalize = bool (*)(void* operation, void** tag, bool* status);

constexpr char kTable[] = "_ZTVN4grpc17ServerContextBase12CompletionOpE";
constexpr char kFinalize[] = "_ZN4grpc17ServerContextBase12CompletionOp14FinalizeResultEPPvPb";
constexpr size_t kMostEntries = 16;

Finalize finalize = nullptr;

bool FinalizeStream(void* operation, void** tag, bool* status) {
  if (!IsStreamThread()) return finalize(operation, tag, status);
  KeepResponsesAway();
  const bool is_notification = finalize(operation, tag, status);
  if (!is_notification) LetResponsesIn();
  return is_notification;
}

using Entry = std::atomic<Finalize>;

// Returns where the table of virtual functions has the function; null if it has not.
Entry* FindEntry(void* table, void* function) {
  if (table == nullptr || function == nullptr) return nullptr;
  auto* entries = static_cast<Entry*>(table);
  for (size_t i = 0; i < kMostEntries; ++i) {
    if (entries[i].load() == reinterpret_cast<Finalize>(function)) return entries + i;
  }
  return nullptr;
}

// Whether the loader has made the part of the program at an address read-only.
bool IsReadOnly(const void* address) {
  struct Search {
    uintptr_t address;
    bool is_found;
  } search{reinterpret_cast<uintptr_t>(address), false};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* argument) {
        auto* each = static_cast<Search*>(argument);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_GNU_RELRO) continue;
          const uintptr_t start = info->dlpi_addr + segment.p_vaddr;
          each->is_found |= start <= each->address && each->address < start + segment.p_memsz;
        }
        return 0;
      },
      &search);
  return search.is_found;
}

bool Replace(Entry* entry, Finalize function) {
  if (!IsReadOnly(entry)) {
    entry->store(function);
    return true;
  }
  const size_t page_size = sysconf(_SC_PAGESIZE);
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) / page_size * page_size);
  if (mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  entry->store(function);
  return mprotect(page, page_size, PROT_READ) == 0;
}

}  // namespace

bool WatchNotifications() {
  void* function = ProgramSymbol(kFinalize);
  Entry* entry = FindEntry(ProgramSymbol(kTable), function);
  if (entry == nullptr) return false;
  finalize = reinterpret_cast<Finalize>(function);
  return Replace(entry, FinalizeStream);
}

}  // namespace pytriton::guard
