#include "guard/gate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace pytriton::guard {

namespace {

constexpr size_t kSize = 4096;
constexpr uint64_t kMaxUnready = 500;

struct GateMemory {
  std::atomic<unsigned char> state;
  alignas(8) std::atomic<uint64_t> hangs;
  std::atomic<uint64_t> unready_count;
  std::atomic<uint64_t> unready[kMaxUnready];  // hashes of the models' names
};
static_assert(sizeof(GateMemory) <= kSize);

// Mapped for as long as the process lives.
const GateMemory* gate = nullptr;

uint64_t NameHash(const char* name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001B3;
  return hash;
}

}  // namespace

void OpenGate() {
  const char* descriptor = std::getenv("PYTRITON_GATE");
  if (descriptor == nullptr) return;
  const int file = std::atoi(descriptor);
  void* memory = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (memory != MAP_FAILED) gate = static_cast<const GateMemory*>(memory);
}

Gate CurrentGate() {
  return gate == nullptr ? Gate::kServing : static_cast<Gate>(gate->state.load(std::memory_order_relaxed));
}

bool IsUnready(const char* model) {
  const uint64_t count =
      gate == nullptr ? 0 : std::min(gate->unready_count.load(std::memory_order_acquire), kMaxUnready);
  if (count == 0 || model == nullptr) return count > 0;
  const uint64_t hash = NameHash(model);
  return std::any_of(gate->unready, gate->unready + count, [&](const auto& each) { return each == hash; });
}

uint64_t Hangs() { return gate == nullptr ? 0 : gate->hangs.load(std::memory_order_relaxed); }

}  // namespace pytriton::guard
