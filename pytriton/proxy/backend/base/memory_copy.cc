#include "base/memory_copy.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/processors.h"

namespace pytriton {

namespace {

constexpr int64_t kLeastForTwo = 2 << 20;  // bytes; less is copied by the time that a thread has woken
constexpr int64_t kPartSize = 128 << 10;

// A thread that takes part in copies.
class CopyThread {
 public:
  CopyThread() {
    if (ProcessorCount() < 2) return;
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {  // too many threads: each copies alone
    }
  }

  ~CopyThread() {
    turn_.lock();  // for ever: when a process exits, its other threads may still copy
    if (!thread_.joinable()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // Copies together with the thread; returns false, without copying, if there is none or it takes part in another copy.
  bool Copy(char* target, const char* source, int64_t size) {
    if (!thread_.joinable()) return false;
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      target_ = target;
      source_ = source;
      size_ = size;
      next_ = 0;
      is_wanted_ = true;
    }
    wake_.notify_one();
    CopyParts();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_wanted_ = false;  // it may not have woken yet
    }
    while (is_copying_.load(std::memory_order_acquire)) sched_yield();  // its last part takes microseconds
    return true;
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return is_wanted_ || stopping_; });
      if (stopping_) return;
      is_wanted_ = false;
      is_copying_.store(true, std::memory_order_relaxed);
      lock.unlock();
      CopyParts();
      is_copying_.store(false, std::memory_order_release);
      lock.lock();
    }
  }

  void CopyParts() {
    while (true) {
      const int64_t begin = next_.fetch_add(kPartSize, std::memory_order_relaxed);
      if (begin >= size_) return;
      std::memcpy(target_ + begin, source_ + begin, std::min(kPartSize, size_ - begin));
    }
  }

  std::mutex turn_;   // of the caller in whose copy the thread takes part
  std::mutex mutex_;  // guards the members below; those of a copy stay as they are until it ends
  std::condition_variable wake_;
  bool is_wanted_ = false;
  bool stopping_ = false;
  char* target_ = nullptr;
  const char* source_ = nullptr;
  int64_t size_ = 0;
  std::atomic<int64_t> next_{0};  // where the next part begins
  std::atomic<bool> is_copying_{false};
  std::thread thread_;
};

}  // namespace

void CopyMemory(char* target, const char* source, int64_t size) {
  if (size >= kLeastForTwo) {
    static CopyThread thread;
    if (thread.Copy(target, source, size)) return;
  }
  std::memcpy(target, source, size);
}

}  // namespace pytriton
