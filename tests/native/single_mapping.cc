// Maps each file once, however often it is asked to (linked with --wrap=mmap and --wrap=munmap).
//
// ThreadSanitizer knows memory by its address. Both sides of a connection map the same arena, each at an address of its
// own: it would never see them meet. With one mapping it sees every access of both, and what orders them.
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

extern "C" {

void* __real_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t length);
void* __wrap_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void* address, size_t length);
}

namespace {

using File = std::pair<dev_t, ino_t>;

struct Shared {
  void* address = nullptr;
  int users = 0;
};

struct Registry {
  std::mutex mutex;
  std::map<File, Shared> files;
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;  // never deleted: threads may unmap after main
  return *registry;
}

}  // namespace

void* __wrap_mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  struct stat status = {};
  if (fd < 0 || (flags & MAP_SHARED) == 0 || fstat(fd, &status) != 0) {
    return __real_mmap(address, length, protection, flags, fd, offset);
  }
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  Shared& shared = registry.files[{status.st_dev, status.st_ino}];
  if (shared.users == 0) shared.address = __real_mmap(address, length, protection, flags, fd, offset);
  if (shared.address != MAP_FAILED) ++shared.users;
  return shared.address;
}

int __wrap_munmap(void* address, size_t length) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  for (auto it = registry.files.begin(); it != registry.files.end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.users > 0) return 0;
    registry.files.erase(it);
    break;
  }
  return __real_munmap(address, length);
}
