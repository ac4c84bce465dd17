// What a thread sleeps on until a bell has come. Twin of `doorbell.py`.
//
// To sleep at a socket costs much more than at a futex, so both sides share words in memory. In lock-step, where one
// bell is on its way at a time, it lies beside them; other bells travel over a socket.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/arena.h"
#include "wire/notification.h"

namespace pytriton {

// Where one thread sleeps that many workers send bells to: a word in a page of its own, which is 1 while it sleeps.
class WakeFlag {
 public:
  WakeFlag();

  // The page.
  int fd() const { return file_.get(); }

  // Sleeps until a worker wakes this thread, for so long at most, or not at all where `is_quiet` says that something
  // has come: that is asked once workers see that they have to wake it.
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

// The backend's end of two words, one for each side, that count the bells which were sent to it.
class Doorbell {
 public:
  // Bytes of shared memory that it takes: the worker's word and a bell for it, and 64 bytes further the backend's two
  // words and a bell for that.
  static constexpr int64_t kSize = 128;

  // There is none.
  Doorbell() = default;
  explicit Doorbell(char* memory);

  bool valid() const { return own_ != nullptr; }

  // Whether the worker has sent a bell that was not heard yet.
  bool HasNotification() const { return static_cast<int32_t>(own_->load(std::memory_order_acquire) - heard_) > 0; }
  // Whether the worker has taken all bells that were sent to it.
  bool IsAcknowledged() const {
    return taken_->load(std::memory_order_relaxed) == workers_->load(std::memory_order_relaxed);
  }
  // Takes the result that has rung, and lies beside the word. It is an earlier one where the worker rang for its end.
  Notification Take();
  // Sleeps until the worker rings, for so long at most.
  void Sleep(int timeout_ms) const;
  // Tells the worker that a bell was sent to it.
  void Notify();
  // The same for a bell that is to lie beside the word.
  void Notify(const Notification& notification);

 private:
  struct Slot;

  std::atomic<uint32_t>* workers_ = nullptr;
  std::atomic<uint32_t>* own_ = nullptr;
  std::atomic<uint32_t>* taken_ = nullptr;
  Slot* workers_slot_ = nullptr;
  const Slot* own_slot_ = nullptr;
  uint32_t heard_ = 0;
};

}  // namespace pytriton
