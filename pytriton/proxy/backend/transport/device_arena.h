// Memory of GPUs for the tensors of batches. Counterpart of `transport/device_arena.py`.
// Each side allocates memory for the tensors that it sends, and the other side opens it (CUDA IPC). Sizes are powers of
// two, and memory stays allocated until the connection is closed: opening it takes a hundred microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "transport/arena.h"
#include "wire/encoding.h"

namespace pytriton {

// Writes the DeviceLocation of memory into a message.
void WriteLocation(const cuda::Memory& memory, char* target);

// The memory of GPUs in which this side allocates.
class DeviceArena {
 public:
  // `arena` holds the messages that refer to the memory.
  explicit DeviceArena(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  // Returns memory of a GPU for as long as `message`, a block of the arena, is in use. Throws CudaError.
  const cuda::Memory& Allocate(int64_t size, const cuda::GpuId& gpu, const Block& message);

  // True only for the first failure, which is logged.
  bool IsFirstFailure() { return !has_failed_.exchange(true); }

 private:
  struct UsedMemory {
    std::unique_ptr<cuda::Memory> memory;
    Block message;
  };

  std::unique_ptr<cuda::Memory> NewMemory(size_t size, int64_t device);
  void Collect();

  const std::shared_ptr<Arena> arena_;
  std::mutex mutex_;
  std::vector<UsedMemory> used_;
  std::vector<std::unique_ptr<cuda::Memory>> free_;
  std::atomic<bool> has_failed_{false};
};

// The memory of GPUs in which the other side allocates.
class PeerDeviceArena {
 public:
  // Returns the tensor of `size` bytes whose DeviceLocation lies in a message, and sets the number of its GPU. Throws
  // CudaError.
  char* At(const char* location, int64_t size, int64_t* device);

 private:
  using Key = std::pair<cuda::GpuId, cuda::IpcHandle>;

  std::mutex mutex_;
  std::map<Key, cuda::PeerMemory> opened_;
};

}  // namespace pytriton
