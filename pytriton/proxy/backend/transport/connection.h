// A model instance's connection to its worker: the channel, and an arena for each direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "transport/adaptive_spin.h"
#include "transport/arena.h"
#include "transport/channel.h"
#include "transport/doorbell.h"
#include "wire/notification.h"
#include "wire/registration.h"

namespace pytriton {

class Connection {
 public:
  // Shakes hands with the worker that the registry named, and hands it its end of the instance's service channel, where
  // it has none yet. Throws ChannelError, ProtocolError or ArenaError.
  explicit Connection(AdmissionMessage admission, int service_fd = -1);
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The names of the model's tensors.
  const AdmissionMessage& model() const { return model_; }
  // Where requests are laid down for the worker.
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  // Where the worker lays its results down.
  const PeerArena& worker_arena() const { return worker_arena_; }

  // A descriptor that becomes readable when the process ends without which the model is of no use: the worker's, or
  // where that is started again when it ends, the one that does so. To be asked for once.
  FileDescriptor TakeProcess() { return std::move(process_); }

  // Whether the worker is there, waiting for a batch.
  bool alive() const { return channel_.Idle(); }

  // Notifies the worker of a batch that lies in the arena at `offset`, and waits for its result, spinning where that
  // pays; calls `waiting` now and then while it sleeps.
  Notification RoundTrip(size_t request_count, int64_t offset, int64_t size, const std::function<void()>& waiting);

  // The two halves of it, for workers that take many batches at a time. Receiving gives up after a while, and returns
  // whether a bell has come.
  int64_t NextSequence() { return ++sequence_; }
  void Send(int64_t sequence, int64_t offset, int64_t size);
  bool Receive(Notification* notification) { return channel_.Receive(notification); }

  // Ends it; whoever waits on it is told so.
  void Close();

 private:
  // Takes the answer to a batch, if it has come; whether it had.
  bool ReceiveNow(Notification* answer);
  // Waits for it for a while; whether it came.
  bool Await(Notification* answer);
  // Throws ChannelError when the worker is gone.
  void CheckAlive() const;

  const AdmissionMessage model_;
  Channel channel_;
  std::shared_ptr<Arena> arena_;
  PeerArena worker_arena_;
  FileDescriptor process_;
  Doorbell doorbell_;  // where the worker sleeps at one
  AdaptiveSpin spin_;  // for results
  int64_t sequence_ = 0;
};

}  // namespace pytriton
