#include "doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace pytriton {

namespace {

constexpr int64_t kBackendsWord = 64;

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free,
              "a futex is a plain word");

}  // namespace

Doorbell::Doorbell(char* memory)
    : workers_(reinterpret_cast<std::atomic<uint32_t>*>(memory)),
      own_(reinterpret_cast<std::atomic<uint32_t>*>(memory + kBackendsWord)) {}

void Doorbell::Sleep(int timeout_ms) const {
  const uint32_t seen = own_->load(std::memory_order_acquire);
  if (static_cast<int32_t>(seen - heard_) > 0) return;
  const timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  syscall(SYS_futex, own_, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void Doorbell::Ring() {
  workers_->fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, workers_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace pytriton
