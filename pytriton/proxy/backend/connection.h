// A model instance's connection to its worker: the channel, and an arena for each direction.
#pragma once

#include <memory>

#include "arena.h"
#include "channel.h"
#include "protocol.h"

namespace pytriton {

class Connection {
 public:
  // Shakes hands with the worker that the registry named. Throws ChannelError, ProtocolError or ArenaError.
  explicit Connection(AdmissionMessage admission);

  // The names of the model's tensors.
  const AdmissionMessage& model() const { return model_; }
  // Where requests are laid down for the worker.
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  // Where the worker lays its results down.
  const PeerArena& worker_arena() const { return worker_arena_; }

  // A descriptor that becomes readable when the worker's process ends.
  FileDescriptor process() const { return channel_.Process(); }

  // Whether the worker is there, waiting for a batch.
  bool alive() const { return channel_.Idle(); }

  // Rings for a message that lies in the arena at `offset` and waits for the worker's answer.
  Bell RoundTrip(BellKind kind, int64_t offset, int64_t size);

 private:
  const AdmissionMessage model_;
  Channel channel_;
  std::shared_ptr<Arena> arena_;
  PeerArena worker_arena_;
  int64_t sequence_ = 0;
};

}  // namespace pytriton
