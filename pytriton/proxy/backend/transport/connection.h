// A model instance's connection to its worker: the channel, and an arena for each direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport/adaptive_spin.h"
#include "transport/arena.h"
#include "transport/channel.h"
#include "transport/device_arena.h"
#include "transport/doorbell.h"
#include "wire/notification.h"
#include "wire/registration.h"

namespace pytriton {

// What a thread does while it waits for a result.
struct Waiting {
  std::function<void()> poll;      // before each look, while it spins
  std::function<void()> end_poll;  // once it does not spin, or no more
  std::function<void()> check;     // occasionally, while it sleeps
  uint64_t first_check_ns = 0;     // when to check first, on the monotonic clock, if that is soon
};

class Connection {
 public:
  // Performs the handshake with the worker, and sends it its end of the instance's service channel if it has none yet.
  // Throws ChannelError, ProtocolError or ArenaError.
  explicit Connection(AdmissionMessage admission, int service_fd = -1);
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The names of the model's tensors.
  const AdmissionMessage& model() const { return model_; }
  // The arena for batches.
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  // The worker's arena for results.
  const PeerArena& worker_arena() const { return worker_arena_; }
  // The same for tensors in the memory of GPUs; null if the worker does not accept them there, or cannot.
  DeviceArena* device_arena() { return device_arena_.has_value() ? &*device_arena_ : nullptr; }
  // Why it cannot, although it accepts them; empty otherwise.
  const std::string& gpu_failure() const { return gpu_failure_; }
  PeerDeviceArena* worker_device_arena() { return &worker_device_arena_; }
  // The bytes of memory that both occupy; may be called from any thread.
  int64_t SharedMemoryBytes() const { return arena_->MemoryBytes() + worker_arena_.MemoryBytes(); }

  // A descriptor that becomes readable when the process on which the model depends exits: the worker's, or that of its
  // supervisor. To be called once.
  FileDescriptor TakeProcess() { return std::move(process_); }

  // Whether the worker is connected and waits for a batch.
  bool alive() const { return channel_.Idle(); }

  // Notifies the worker of a batch, or one of the warm-up, that lies in the arena at `offset`, and waits for its
  // result, spinning if that pays off.
  Notification RoundTrip(NotificationKind kind, size_t request_count, int64_t offset, int64_t size,
                         const Waiting& waiting);

  // The two halves of a round trip, for concurrent mode. `Receive` waits for a while, `ReceiveUntil` until `end_ns`,
  // spinning if that pays off; both return whether a notification arrived. `AwaitEnd` waits until the worker has
  // disconnected, or the descriptor `other` is readable. `AwaitTaken` waits for a while until the worker takes pending
  // notifications, and returns whether it has taken all, or does not count them.
  int64_t NextSequence() { return ++sequence_; }
  void Send(const Notification& notification);
  bool Receive(Notification* notification) { return channel_.Receive(notification); }
  bool ReceiveUntil(Notification* notification, uint64_t end_ns);
  void AwaitEnd(int other) const { channel_.AwaitEnd(other); }
  bool AwaitTaken();
  // Records how long the worker took for a batch, to adapt the spinning.
  void RecordRoundTrip(size_t request_count, int64_t duration_ns);

  // Closes the connection, and wakes every thread that waits on it.
  void Close();

 private:
  // Receives the result of a batch without waiting. Returns whether there was one.
  bool ReceiveNow(Notification* notification);
  // Sleeps for a while, or until `end_ns`. Returns whether the result has arrived.
  bool Await(Notification* notification);
  bool AwaitUntil(Notification* notification, uint64_t end_ns);
  // Throws ChannelError if the worker has disconnected.
  void CheckAlive() const;

  // Allocates memory of the worker's GPU, and writes its location. Returns whether that succeeded.
  bool OfferGpuMemory(const Block& block);

  AdmissionMessage model_;
  std::string gpu_failure_;
  Channel channel_;
  std::shared_ptr<Arena> arena_;
  PeerArena worker_arena_;
  std::optional<DeviceArena> device_arena_;
  PeerDeviceArena worker_device_arena_;
  FileDescriptor process_;
  Doorbell doorbell_;  // valid if the worker uses one; in concurrent mode, it counts notifications sent and taken
  AdaptiveSpin spin_;  // for results
  int64_t sequence_ = 0;
};

}  // namespace pytriton
