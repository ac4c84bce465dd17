// The part of NVIDIA's driver that the backend uses. It is opened on first use, so that it is not required.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace pytriton::cuda {

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A handle with which another process opens memory of a GPU.
using IpcHandle = std::array<char, 64>;
// The id of a GPU. It is the same in all processes, while each has its own numbers for the GPUs that it sees.
using GpuId = std::array<char, 16>;

// Returns the number of a GPU, or the id of a number. Throws CudaError if this process does not see it.
int64_t DeviceOf(const GpuId& gpu);
GpuId IdOf(int64_t device);

// Makes a GPU's primary context, which all libraries of a process share, current in this thread while it lives. Throws
// CudaError.
class Context {
 public:
  explicit Context(int64_t device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

// Copies between host memory and memory of GPUs, in any direction. Several copies may be in progress until `Wait`. The
// calling thread needs a `Context`.
void StartCopy(void* target, const void* source, size_t size);
void Wait();

// A copy that has been completed.
void Copy(void* target, const void* source, size_t size, int64_t device);

// Memory of a GPU that other processes can open.
class Memory {
 public:
  Memory(size_t size, int64_t device);  // throws CudaError
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int64_t device() const { return device_; }
  const IpcHandle& handle() const { return handle_; }
  const GpuId& gpu() const { return gpu_; }

 private:
  const size_t size_;
  const int64_t device_;
  char* data_ = nullptr;
  IpcHandle handle_ = {};
  GpuId gpu_ = {};
};

// Memory of a GPU that another process has allocated.
class PeerMemory {
 public:
  PeerMemory(const IpcHandle& handle, const GpuId& gpu);  // throws CudaError
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Returns `size` bytes, after a bounds check. Throws CudaError.
  char* At(int64_t offset, int64_t size) const;
  int64_t device() const { return device_; }

 private:
  const int64_t device_;
  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace pytriton::cuda
