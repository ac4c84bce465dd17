#include "transport/device_arena.h"

#include <algorithm>
#include <cstring>

namespace pytriton {

namespace {

constexpr int64_t kMinSize = int64_t{1} << 21;  // the driver allocates no less

size_t RoundUp(int64_t size) {
  int64_t rounded = kMinSize;
  while (rounded < size) rounded *= 2;
  return static_cast<size_t>(rounded);
}

}  // namespace

void WriteLocation(const cuda::Memory& memory, char* target) {
  const DeviceLocation location = {memory.handle(), memory.gpu(), 0};
  std::memcpy(target, &location, sizeof(location));
}

const cuda::Memory& DeviceArena::Allocate(int64_t size, const cuda::GpuId& gpu, const Block& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Collect();
  const size_t rounded = RoundUp(size);
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& memory) {
    return memory->size() == rounded && memory->gpu() == gpu;
  });
  if (found != free_.end()) {
    used_.push_back({std::move(*found), message});
    free_.erase(found);
  } else {
    used_.push_back({NewMemory(rounded, cuda::DeviceOf(gpu)), message});
  }
  return *used_.back().memory;
}

std::unique_ptr<cuda::Memory> DeviceArena::NewMemory(size_t size, int64_t device) {
  try {
    return std::make_unique<cuda::Memory>(size, device);
  } catch (const cuda::CudaError&) {
    if (free_.empty()) throw;
    free_.clear();  // blocks of other sizes may make room
    return std::make_unique<cuda::Memory>(size, device);
  }
}

void DeviceArena::Collect() {
  const auto released = std::partition(used_.begin(), used_.end(),
                                       [this](const UsedMemory& each) { return arena_->IsInUse(each.message); });
  for (auto each = released; each != used_.end(); ++each) free_.push_back(std::move(each->memory));
  used_.erase(released, used_.end());
}

char* PeerDeviceArena::At(const char* data, int64_t size, int64_t* device) {
  DeviceLocation location;
  std::memcpy(&location, data, sizeof(location));
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = opened_.try_emplace({location.gpu, location.handle}, location.handle, location.gpu).first;
  const cuda::PeerMemory& memory = found->second;
  *device = memory.device();
  return memory.At(location.offset, size);
}

}  // namespace pytriton
