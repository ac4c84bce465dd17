// Notifications: packets of 32 bytes with the location of a message in shared memory. Counterpart of
// `wire/notification.py`.
#pragma once

#include <cstdint>

namespace pytriton {

// The version of the wire format, raised with every change. A peer with another version is refused.
constexpr int64_t kProtocolVersion = 18;

enum class NotificationKind : int64_t {
  kHello = 1,
  kWelcome = 2,
  kBatch = 3,
  kResult = 4,
  kResponses = 5,
  kReturned = 6,
  kWarmup = 7
};

// Flags in the size of kWelcome: the worker page-locks the backend's arena; it can open the GPU memory that kHello
// names.
constexpr int64_t kPageLocked = 1;
constexpr int64_t kOpensGpuMemory = 2;

// A notification; `offset` and `size` are the location of a message in the sender's arena.
struct Notification {
  int64_t kind = 0;
  int64_t sequence = 0;  // of the batch; in kHello, the ticket
  int64_t offset = 0;
  int64_t size = 0;
};
static_assert(sizeof(Notification) == 32);

}  // namespace pytriton
