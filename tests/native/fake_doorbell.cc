#include "fake_doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace fake_worker {

namespace {

constexpr int64_t kSize = 128;
constexpr int64_t kBackendsHalf = 64;
constexpr int64_t kNapNs = 10'000'000;

}  // namespace

struct Doorbell::Workers {
  std::atomic<uint32_t> notified;
  int64_t offset;
  int64_t size;
  std::atomic<int64_t> sequence;
  int64_t kind;
};

struct Doorbell::Backends {
  std::atomic<uint32_t> notified;
  std::atomic<uint32_t> acknowledged;
  int64_t offset;
  int64_t size;
  std::atomic<int64_t> sequence;
};

Doorbell::Doorbell(const pytriton::PeerArena& arena, int64_t offset) {
  char* memory = const_cast<char*>(arena.At(offset, kSize));  // the worker's own words lie in it
  workers_ = reinterpret_cast<Workers*>(memory);
  backends_ = reinterpret_cast<Backends*>(memory + kBackendsHalf);
}

std::optional<pytriton::Notification> Doorbell::Take() {
  if (workers_->notified.load(std::memory_order_acquire) == acknowledged_) Sleep();
  if (workers_->notified.load(std::memory_order_acquire) == acknowledged_) return {};
  backends_->acknowledged.store(++acknowledged_);
  const int64_t sequence = workers_->sequence.load(std::memory_order_acquire);
  if (sequence == sequence_) return {};
  sequence_ = sequence;
  return pytriton::Notification{workers_->kind, sequence, workers_->offset, workers_->size};
}

void Doorbell::Notify(const pytriton::Notification& result) {
  backends_->offset = result.offset;
  backends_->size = result.size;
  backends_->sequence.store(result.sequence, std::memory_order_release);
  backends_->notified.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &backends_->notified, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Doorbell::Acknowledge() {
  backends_->acknowledged.store(++acknowledged_);
  syscall(SYS_futex, &backends_->acknowledged, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Doorbell::Sleep() const {
  const timespec nap = {0, kNapNs};
  syscall(SYS_futex, &workers_->notified, FUTEX_WAIT, acknowledged_, &nap, nullptr, 0);
}

}  // namespace fake_worker
