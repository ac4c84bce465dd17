#include "cuda/driver.h"

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace pytriton::cuda {

namespace {

using Result = int;
using DevicePointer = uint64_t;

constexpr Result kSuccess = 0;
// The per-thread default stream.
void* const kThreadStream = reinterpret_cast<void*>(2);
constexpr unsigned kOpenLazily = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag

struct PassedHandle {  // handles are passed by value
  char bytes[std::tuple_size<IpcHandle>::value];
};

// The functions of the driver, with the suffixes that its header adds to the names.
class Driver {
 public:
  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }

  // Throws CudaError.
  void Check(Result result, const char* what) const {
    if (result == kSuccess) return;
    const char* text = nullptr;
    get_error_string(result, &text);
    throw CudaError(std::string(what) + ": " + (text != nullptr ? text : "unknown error") + " (CUDA error " +
                    std::to_string(result) + ")");
  }

  GpuId IdOf(int64_t device) const {
    int handle = 0;
    Check(device_get(&handle, static_cast<int>(device)), "cannot find a GPU");
    GpuId gpu = {};
    Check(device_id(&gpu, handle), "cannot identify a GPU");
    return gpu;
  }

  // Returns the primary context of a GPU, which exists until the process exits.
  void* PrimaryContext(int64_t device) const {
    static std::mutex mutex;
    static std::map<int64_t, void*> contexts;
    const std::lock_guard<std::mutex> lock(mutex);
    void*& context = contexts[device];
    if (context != nullptr) return context;
    int handle = 0;
    Check(device_get(&handle, static_cast<int>(device)), "cannot find a GPU");
    Check(primary_context_retain(&context, handle), "cannot use a GPU");
    return context;
  }

  Result (*init)(unsigned) = nullptr;
  Result (*get_error_string)(Result, const char**) = nullptr;
  Result (*device_get)(int*, int) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device_id)(GpuId*, int) = nullptr;
  Result (*primary_context_retain)(void**, int) = nullptr;
  Result (*context_push)(void*) = nullptr;
  Result (*context_pop)(void**) = nullptr;
  Result (*copy)(DevicePointer, DevicePointer, size_t, void*) = nullptr;
  Result (*synchronize)(void*) = nullptr;
  Result (*allocate)(DevicePointer*, size_t) = nullptr;
  Result (*free)(DevicePointer) = nullptr;
  Result (*get_range)(DevicePointer*, size_t*, DevicePointer) = nullptr;
  Result (*get_handle)(PassedHandle*, DevicePointer) = nullptr;
  Result (*open_handle)(DevicePointer*, PassedHandle, unsigned) = nullptr;
  Result (*close_handle)(DevicePointer) = nullptr;

 private:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw CudaError("there is no driver for GPUs");
    Find("cuInit", &init);
    Find("cuGetErrorString", &get_error_string);
    Find("cuDeviceGet", &device_get);
    Find("cuDeviceGetCount", &device_count);
    Find("cuDeviceGetUuid_v2", &device_id);
    Find("cuDevicePrimaryCtxRetain", &primary_context_retain);
    Find("cuCtxPushCurrent_v2", &context_push);
    Find("cuCtxPopCurrent_v2", &context_pop);
    Find("cuMemcpyAsync", &copy);
    Find("cuStreamSynchronize", &synchronize);
    Find("cuMemAlloc_v2", &allocate);
    Find("cuMemFree_v2", &free);
    Find("cuMemGetAddressRange_v2", &get_range);
    Find("cuIpcGetMemHandle", &get_handle);
    Find("cuIpcOpenMemHandle_v2", &open_handle);
    Find("cuIpcCloseMemHandle", &close_handle);
    Check(init(0), "cannot initialize the driver for GPUs");
  }

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr) throw CudaError(std::string("the driver for GPUs has no ") + name);
  }

  void* library_;  // never closed
};

DevicePointer ToDevice(const void* data) { return reinterpret_cast<DevicePointer>(data); }

// When the process exits, the driver may be unloaded before memory is freed.
template <typename Body>
void IgnoringErrors(Body body) {
  try {
    body();
  } catch (const CudaError&) {
  }
}

}  // namespace

int64_t DeviceOf(const GpuId& gpu) {
  const Driver& driver = Driver::Get();
  int count = 0;
  driver.Check(driver.device_count(&count), "cannot count GPUs");
  for (int device = 0; device < count; ++device) {
    if (driver.IdOf(device) == gpu) return device;
  }
  throw CudaError("the server does not see the GPU");
}

GpuId IdOf(int64_t device) { return Driver::Get().IdOf(device); }

Context::Context(int64_t device) {
  const Driver& driver = Driver::Get();
  driver.Check(driver.context_push(driver.PrimaryContext(device)), "cannot use a GPU");
}

Context::~Context() {
  void* context = nullptr;
  Driver::Get().context_pop(&context);
}

void StartCopy(void* target, const void* source, size_t size) {
  if (size == 0) return;
  const Driver& driver = Driver::Get();
  driver.Check(driver.copy(ToDevice(target), ToDevice(source), size, kThreadStream), "cannot copy a tensor of a GPU");
}

void Wait() {
  const Driver& driver = Driver::Get();
  driver.Check(driver.synchronize(kThreadStream), "cannot copy a tensor of a GPU");
}

void Copy(void* target, const void* source, size_t size, int64_t device) {
  const Context context(device);
  StartCopy(target, source, size);
  Wait();
}

Memory::Memory(size_t size, int64_t device) : size_(size), device_(device) {
  const Context context(device);
  const Driver& driver = Driver::Get();
  DevicePointer data = 0;
  driver.Check(driver.allocate(&data, size), "cannot allocate memory of a GPU");
  PassedHandle handle = {};
  const Result result = driver.get_handle(&handle, data);
  if (result != kSuccess) driver.free(data);
  driver.Check(result, "cannot share memory of a GPU");
  data_ = reinterpret_cast<char*>(data);
  gpu_ = driver.IdOf(device);
  std::memcpy(handle_.data(), handle.bytes, handle_.size());
}

Memory::~Memory() {
  IgnoringErrors([this] {
    const Context context(device_);
    Driver::Get().free(ToDevice(data_));
  });
}

PeerMemory::PeerMemory(const IpcHandle& handle, const GpuId& gpu) : device_(DeviceOf(gpu)) {
  const Context context(device_);
  const Driver& driver = Driver::Get();
  PassedHandle passed = {};
  std::memcpy(passed.bytes, handle.data(), handle.size());
  DevicePointer data = 0;
  driver.Check(driver.open_handle(&data, passed, kOpenLazily), "cannot open memory of a GPU");
  DevicePointer base = 0;
  size_t size = 0;
  const Result result = driver.get_range(&base, &size, data);
  if (result != kSuccess) driver.close_handle(data);
  driver.Check(result, "cannot examine memory of a GPU");
  data_ = reinterpret_cast<char*>(data);
  size_ = static_cast<int64_t>(size - (data - base));
}

PeerMemory::~PeerMemory() {
  IgnoringErrors([this] {
    const Context context(device_);
    Driver::Get().close_handle(ToDevice(data_));
  });
}

char* PeerMemory::At(int64_t offset, int64_t size) const {
  if (offset < 0 || size < 0 || offset > size_ || size > size_ - offset) {
    throw CudaError("a tensor lies outside its memory of a GPU");
  }
  return data_ + offset;
}

}  // namespace pytriton::cuda
