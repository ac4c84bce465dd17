#include "connection.h"

#include <utility>

namespace pytriton {

namespace {

constexpr int kHandshakeTimeoutS = 5;

}  // namespace

Connection::Connection(AdmissionMessage admission)
    : model_(std::move(admission)), channel_(model_.socket), arena_(std::make_shared<Arena>()) {
  channel_.Send({static_cast<int64_t>(BellKind::kHello), model_.ticket, 0, 0}, arena_->fd());
  FileDescriptor worker_file;
  const Bell answer = channel_.Receive(&worker_file, kHandshakeTimeoutS);
  if (answer.kind != static_cast<int64_t>(BellKind::kWelcome) || !worker_file.valid()) {
    throw ProtocolError("the worker did not welcome the model instance");
  }
  worker_arena_ = PeerArena(std::move(worker_file));
}

Bell Connection::RoundTrip(BellKind kind, int64_t offset, int64_t size) {
  channel_.Send({static_cast<int64_t>(kind), ++sequence_, offset, size});
  const Bell answer = channel_.Receive();
  if (answer.kind != static_cast<int64_t>(BellKind::kResult) || answer.sequence != sequence_) {
    throw ProtocolError("the worker answered out of turn");
  }
  return answer;
}

}  // namespace pytriton
