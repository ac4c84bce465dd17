#include "transport/doorbell.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.h"

namespace pytriton {

namespace {

constexpr int64_t kBackendsWord = 64;
constexpr int64_t kSlot = 8;  // offset of the slot from a side's first word
constexpr int64_t kPage = 4096;

using Word = std::atomic<uint32_t>;

static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free, "a futex is a plain word");

// Sleeps while the word equals `seen`.
void WaitAt(Word* word, uint32_t seen, int64_t timeout_ns) {
  const timespec timeout = {timeout_ns / kSecondNs, timeout_ns % kSecondNs};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void WakeAt(Word* word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0); }

FileDescriptor NewPage() {
  FileDescriptor file(memfd_create("pytriton", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ftruncate(file.get(), kPage) != 0 || !Seal(file.get()))
    throw ArenaError("cannot create a page of shared memory");
  return file;
}

}  // namespace

WakeFlag::WakeFlag() : file_(NewPage()), page_(file_.get(), kPage), word_(reinterpret_cast<Word*>(page_.data())) {}

void WakeFlag::Wait(int timeout_ms) const { WaitAt(word_, 1, timeout_ms * kMillisecondNs); }

void WakeFlag::Wake() {
  if (word_->exchange(0) != 0) WakeAt(word_);
}

PollFlag::PollFlag(char* memory)
    : polls_(reinterpret_cast<Word*>(memory)), sent_(reinterpret_cast<Word*>(memory) + 1) {}

// A notification in memory. Its sequence is written last, since a closing side may notify at any time.
struct Doorbell::Slot {
  int64_t offset;
  int64_t size;
  std::atomic<int64_t> sequence;
  int64_t kind;
};

Doorbell::Doorbell(char* memory)
    : workers_(reinterpret_cast<Word*>(memory)),
      own_(reinterpret_cast<Word*>(memory + kBackendsWord)),
      taken_(own_ + 1),
      workers_slot_(reinterpret_cast<Slot*>(memory + kSlot)),
      own_slot_(reinterpret_cast<const Slot*>(memory + kBackendsWord + kSlot)) {
  static_assert(sizeof(Slot) == 32 && std::atomic<int64_t>::is_always_lock_free, "the worker writes plain words");
}

void Doorbell::Sleep(int64_t timeout_ns) const {
  const uint32_t seen = own_->load(std::memory_order_acquire);
  if (static_cast<int32_t>(seen - acknowledged_) <= 0) WaitAt(own_, seen, timeout_ns);
}

Notification Doorbell::Take() {
  ++acknowledged_;
  const int64_t sequence = own_slot_->sequence.load(std::memory_order_acquire);
  return {static_cast<int64_t>(NotificationKind::kResult), sequence, own_slot_->offset, own_slot_->size};
}

void Doorbell::Notify(const Notification& notification) {
  workers_slot_->kind = notification.kind;
  workers_slot_->offset = notification.offset;
  workers_slot_->size = notification.size;
  workers_slot_->sequence.store(notification.sequence, std::memory_order_release);
  Notify();
}

void Doorbell::AwaitAcknowledgement(int timeout_ms) const {
  const uint32_t seen = taken_->load(std::memory_order_acquire);
  if (seen != workers_->load(std::memory_order_relaxed)) WaitAt(taken_, seen, timeout_ms * kMillisecondNs);
}

void Doorbell::Notify() {
  workers_->fetch_add(1, std::memory_order_release);
  WakeAt(workers_);
}

}  // namespace pytriton
