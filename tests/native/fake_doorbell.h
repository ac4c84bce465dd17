// The worker's end of a doorbell, as `doorbell.py` has it. The layout is written down here once more.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "transport/arena.h"
#include "wire/inference.h"
#include "wire/notification.h"
#include "wire/registration.h"

namespace fake_worker {

class Doorbell {
 public:
  // It lies at `offset` in the backend's arena, which outlives it.
  Doorbell(const pytriton::PeerArena& arena, int64_t offset);

  // The next batch; nothing if none comes for a while, or the other side has ended.
  std::optional<pytriton::Notification> Take();
  void Notify(const pytriton::Notification& result);
  // Acknowledges a batch that came over the socket.
  void Acknowledge();

 private:
  struct Workers;
  struct Backends;

  void Sleep() const;

  Workers* workers_;
  Backends* backends_;
  uint32_t acknowledged_ = 0;
  int64_t sequence_ = 0;  // of the batch that was taken last
};

}  // namespace fake_worker
