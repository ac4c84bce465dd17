// A doorbell: futex-based wake-up with a one-slot mailbox. Counterpart of `transport/doorbell.py`.
//
// Sleeping on a futex costs much less than on a socket, so both sides share words in memory. In sequential mode, only
// one notification is in transit at a time, and it is stored next to these words; other notifications go over a socket,
// and the words count them.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/arena.h"
#include "wire/notification.h"

namespace pytriton {

// The wake flag of one thread that receives notifications from many workers: a word in its own page, 1 while it sleeps.
class WakeFlag {
 public:
  WakeFlag();

  // The page.
  int fd() const { return file_.get(); }

  // Sleeps until a worker wakes this thread or the timeout has passed; does not sleep if `is_quiet` returns false.
  // `is_quiet` is called once workers can see that the thread sleeps.
  template <typename IsQuiet>
  void Sleep(int timeout_ms, const IsQuiet& is_quiet) {
    word_->store(1);
    if (is_quiet()) Wait(timeout_ms);
    word_->store(0);
  }

  void Wake();

 private:
  void Wait(int timeout_ms) const;

  FileDescriptor file_;
  Mapping page_;
  std::atomic<uint32_t>* word_;
};

// Two words by which a thread of the backend that polls anyway receives a worker's notifications in the place of the
// thread that sleeps on a wake flag.
class PollFlag {
 public:
  static constexpr int64_t kSize = 64;

  // No flag.
  PollFlag() = default;
  explicit PollFlag(char* memory);

  // From `Begin` on, the worker wakes no other thread. After `End`, there may be notifications that it has sent before.
  void Begin() { polls_->store(1); }
  void End() { polls_->store(0); }
  // Returns whether the worker has sent a notification since the last call.
  bool TakeSent() { return sent_->load(std::memory_order_relaxed) != 0 && sent_->exchange(0) != 0; }

 private:
  std::atomic<uint32_t>* polls_ = nullptr;
  std::atomic<uint32_t>* sent_ = nullptr;
};

// The backend's end of a doorbell: two words, one for each side, count the notifications sent to that side.
class Doorbell {
 public:
  // Bytes of shared memory that a doorbell takes: the worker's word and slot; 64 bytes further, the backend's two words
  // and slot.
  static constexpr int64_t kSize = 128;

  // No doorbell.
  Doorbell() = default;
  explicit Doorbell(char* memory);

  bool valid() const { return own_ != nullptr; }

  // Whether there is a notification that was not taken yet.
  bool HasNotification() const {
    return static_cast<int32_t>(own_->load(std::memory_order_acquire) - acknowledged_) > 0;
  }
  // Whether the worker has taken all notifications sent to it.
  bool IsAcknowledged() const {
    return taken_->load(std::memory_order_relaxed) == workers_->load(std::memory_order_relaxed);
  }
  // Takes the result's notification out of the slot. It is an earlier one if the worker notified because it is closing.
  Notification Take();
  // Sleeps until a notification arrives or the timeout has passed.
  void Sleep(int64_t timeout_ns) const;
  // Wakes the worker for a notification that was sent over the socket.
  void Notify();
  // Puts a notification into the slot, and wakes the worker.
  void Notify(const Notification& notification);
  // Counts a notification that is about to be sent over the socket, to a worker that need not be woken.
  void Count() { workers_->fetch_add(1, std::memory_order_release); }
  // Sleeps until the worker takes a notification, unless it has taken all, or until the timeout has passed.
  void AwaitAcknowledgement(int timeout_ms) const;

 private:
  struct Slot;

  std::atomic<uint32_t>* workers_ = nullptr;
  std::atomic<uint32_t>* own_ = nullptr;
  std::atomic<uint32_t>* taken_ = nullptr;
  Slot* workers_slot_ = nullptr;
  const Slot* own_slot_ = nullptr;
  uint32_t acknowledged_ = 0;
};

}  // namespace pytriton
