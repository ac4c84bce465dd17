// What a thread sleeps on until a bell has come. Twin of `doorbell.py`.
//
// Bells themselves travel over the channel's socket. To sleep at a socket costs much more than at a futex, so a worker
// and a model instance in lock-step share two words in memory, one for each side, which count the bells that were sent
// to it.
#pragma once

#include <atomic>
#include <cstdint>

namespace pytriton {

// The backend's end.
class Doorbell {
 public:
  // Bytes of shared memory that it takes: the worker's word, and 64 bytes further the backend's.
  static constexpr int64_t kSize = 128;

  // There is none.
  Doorbell() = default;
  explicit Doorbell(char* memory);

  bool valid() const { return own_ != nullptr; }

  // Whether the worker has sent a bell that was not heard yet.
  bool HasRung() const { return static_cast<int32_t>(own_->load(std::memory_order_acquire) - heard_) > 0; }
  // Notes that a bell was taken.
  void Hear() { ++heard_; }
  // Sleeps until the worker rings, for so long at most.
  void Sleep(int timeout_ms) const;
  // Tells the worker that a bell was sent to it.
  void Ring();

 private:
  std::atomic<uint32_t>* workers_ = nullptr;
  std::atomic<uint32_t>* own_ = nullptr;
  uint32_t heard_ = 0;
};

}  // namespace pytriton
