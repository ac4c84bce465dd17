#include "guard/program_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pytriton::guard {

namespace {

// A file, as memory; empty if it cannot be read.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status{};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      void* data = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
      if (data != MAP_FAILED) {
        data_ = static_cast<const char*>(data);
        size_ = status.st_size;
      }
    }
    close(file);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Returns `count` items at `offset`; null if the file does not have them.
  template <typename Item>
  const Item* At(size_t offset, size_t count) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(Item) || offset % alignof(Item) != 0) return nullptr;
    return reinterpret_cast<const Item*>(data_ + offset);
  }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// Returns a symbol's offset within the program; 0 if it has none.
uintptr_t FindSymbol(const MappedFile& file, const char* name) {
  const auto* header = file.At<ElfW(Ehdr)>(0, 1);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return 0;
  const auto* sections = file.At<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  if (sections == nullptr) return 0;
  const size_t name_size = std::strlen(name) + 1;
  for (size_t i = 0; i < header->e_shnum; ++i) {
    const ElfW(Shdr) & section = sections[i];
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= header->e_shnum) continue;
    const size_t count = section.sh_size / sizeof(ElfW(Sym));
    const ElfW(Shdr) & names = sections[section.sh_link];
    const auto* symbols = file.At<ElfW(Sym)>(section.sh_offset, count);
    const auto* strings = file.At<char>(names.sh_offset, names.sh_size);
    if (symbols == nullptr || strings == nullptr) continue;
    for (size_t at = 0; at < count; ++at) {
      const ElfW(Sym) & symbol = symbols[at];
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_name > names.sh_size - name_size) continue;
      if (std::memcmp(strings + symbol.st_name, name, name_size) == 0) return symbol.st_value;
    }
  }
  return 0;
}

// The program is the first object that the loader lists.
int FindBase(dl_phdr_info* info, size_t, void* base) {
  *static_cast<uintptr_t*>(base) = info->dlpi_addr;
  return 1;
}

}  // namespace

void* ProgramSymbol(const char* name) {
  const uintptr_t offset = FindSymbol(MappedFile("/proc/self/exe"), name);
  if (offset == 0) return nullptr;
  uintptr_t base = 0;
  dl_iterate_phdr(FindBase, &base);
  return reinterpret_cast<void*>(base + offset);
}

}  // namespace pytriton::guard
