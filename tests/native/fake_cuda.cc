// A stand-in for NVIDIA's driver, libcuda.so.1: as much of it as the proxy calls, for machines without a GPU.
//
// The memory of its two GPUs is memory of the computer, at addresses that nobody but the driver can read. As with the
// real one, memory can be opened by other processes only, pages are locked once, and copies are done once their stream
// was waited for.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {

using Result = int;
using Address = uint64_t;

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kNotInitialized = 3;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kAlreadyLocked = 712;
constexpr Result kNotLocked = 713;
constexpr Result kLaunchFailed = 719;
constexpr int kDevices = 2;
constexpr Address kOfDevice = Address{1} << 62;  // set in the addresses of GPUs

struct Handle {
  int pid;
  int fd;
  uint64_t size;
  char rest[48];
};
static_assert(sizeof(Handle) == 64);

struct Memory {
  uint64_t size;
  int fd;  // -1: another process has allocated it
  int opened;
};

struct Copy {
  Address target;
  std::vector<char> data;
};

std::mutex mutex;
bool is_initialized = false;
bool opens_own = false;
bool is_retained[kDevices] = {};
std::map<Address, Memory> memories;
std::map<Address, uint64_t> locked;
int ranges_locked = 0;
int context_of[kDevices];
thread_local std::vector<void*> current;
thread_local std::vector<Copy> started;

char* ToHost(Address address) { return reinterpret_cast<char*>(address & ~kOfDevice); }

Result Map(int fd, uint64_t size, Address* address, int owned_fd) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return kInvalidValue;
  *address = reinterpret_cast<Address>(data) | kOfDevice;
  memories[*address] = {size, owned_fd, 1};
  return kSuccess;
}

}  // namespace

extern "C" {

Result cuInit(unsigned) {
  is_initialized = true;
  return kSuccess;
}

Result cuGetErrorString(Result result, const char** text) {
  *text = result == kInvalidDevice ? "no such GPU" : "something went wrong";
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  *count = kDevices;
  return is_initialized ? kSuccess : kNotInitialized;
}

Result cuDeviceGet(int* device, int number) {
  *device = number;
  return number >= 0 && number < kDevices ? kSuccess : kInvalidDevice;
}

Result cuDeviceGetUuid_v2(char* id, int device) {
  std::memset(id, device, 16);
  return kSuccess;
}

Result cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  is_retained[device] = true;
  *context = &context_of[device];
  return kSuccess;
}

Result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  const std::lock_guard<std::mutex> lock(mutex);
  *flags = 0;
  *is_active = is_retained[device] ? 1 : 0;
  return kSuccess;
}

Result cuCtxPushCurrent_v2(void* context) {
  current.push_back(context);
  return kSuccess;
}

Result cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

Result cuCtxSynchronize() { return current.empty() ? kInvalidContext : kSuccess; }

Result cuMemcpyAsync(Address target, Address source, size_t size, void*) {
  if (current.empty()) return kInvalidContext;
  const char* data = ToHost(source);
  started.push_back({target, {data, data + size}});
  return kSuccess;
}

Result cuStreamSynchronize(void*) {
  if (current.empty()) return kInvalidContext;
  const char* fails = std::getenv("FAKE_CUDA_FAILS");
  if (fails != nullptr && access(fails, F_OK) == 0) {
    started.clear();
    return kLaunchFailed;
  }
  for (const Copy& copy : started) std::memcpy(ToHost(copy.target), copy.data.data(), copy.data.size());
  started.clear();
  return kSuccess;
}

Result cuMemAlloc_v2(Address* address, size_t size) {
  if (current.empty()) return kInvalidContext;
  const std::lock_guard<std::mutex> lock(mutex);
  const int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) return kInvalidValue;
  return Map(fd, size, address, fd);
}

Result cuMemFree_v2(Address address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = memories.find(address);
  if (found == memories.end() || found->second.fd < 0) return kInvalidValue;
  munmap(ToHost(address), found->second.size);
  close(found->second.fd);
  memories.erase(found);
  return kSuccess;
}

Result cuMemGetAddressRange_v2(Address* base, size_t* size, Address address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = memories.find(address);
  if (found == memories.end()) return kInvalidValue;
  *base = address;
  *size = found->second.size;
  return kSuccess;
}

Result cuIpcGetMemHandle(Handle* handle, Address address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = memories.find(address);
  if (std::getenv("FAKE_CUDA_WITHOUT_IPC") != nullptr || found == memories.end() || found->second.fd < 0) {
    return kInvalidValue;
  }
  *handle = {getpid(), found->second.fd, found->second.size, {}};
  return kSuccess;
}

Result cuIpcOpenMemHandle_v2(Address* address, Handle handle, unsigned) {
  const char* refuses = std::getenv("FAKE_CUDA_OPENS_NOTHING");
  if (refuses != nullptr) return kInvalidValue;
  if (current.empty() || (handle.pid == getpid() && !opens_own)) return kInvalidContext;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  const std::lock_guard<std::mutex> lock(mutex);
  const Result result = Map(fd, handle.size, address, -1);
  close(fd);
  return result;
}

Result cuIpcCloseMemHandle(Address address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = memories.find(address);
  if (found == memories.end() || found->second.fd >= 0) return kInvalidValue;
  munmap(ToHost(address), found->second.size);
  memories.erase(found);
  return kSuccess;
}

Result cuMemHostRegister_v2(Address address, size_t size, unsigned) {
  if (current.empty()) return kInvalidContext;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [start, length] : locked) {
    if (start < address + size && address < start + length) return kAlreadyLocked;
  }
  locked[address] = size;
  ++ranges_locked;
  return kSuccess;
}

Result cuMemHostUnregister(Address address) {
  const std::lock_guard<std::mutex> lock(mutex);
  return locked.erase(address) == 1 ? kSuccess : kNotLocked;
}

// The tests' own.

// Whether pages are locked: all of the range 1, none 0, some -1.
int fake_cuda_locked(Address address, size_t size) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [start, length] : locked) {
    if (start <= address && address + size <= start + length) return 1;
    if (start < address + size && address < start + length) return -1;
  }
  return 0;
}

// Number of ranges that this process has ever locked.
int fake_cuda_ranges_locked() { return ranges_locked; }

// Lets this process open what it has allocated itself.
void fake_cuda_open_own() { opens_own = true; }

// Number of memories that this process has allocated or opened.
int fake_cuda_memories() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int>(memories.size());
}
}
