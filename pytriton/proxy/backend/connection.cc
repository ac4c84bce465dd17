#include "connection.h"

#include <utility>
#include <vector>

#include "accounts.h"

namespace pytriton {

namespace {

constexpr int kHandshakeTimeoutMs = 5000;
constexpr int kPatienceMs = 50;

}  // namespace

Connection::Connection(AdmissionMessage admission, int service_fd)
    : model_(std::move(admission)), channel_(model_.socket), arena_(std::make_shared<Arena>()) {
  channel_.Send({static_cast<int64_t>(BellKind::kHello), model_.ticket, 0, 0}, arena_->fd(), service_fd);
  std::vector<FileDescriptor> files;
  Bell answer;
  channel_.SetPatience(kHandshakeTimeoutMs);
  if (!channel_.Receive(&answer, &files)) throw ChannelError("the worker did not answer");
  if (answer.kind != static_cast<int64_t>(BellKind::kWelcome) || files.empty()) {
    throw ProtocolError("the worker did not welcome the model instance");
  }
  worker_arena_ = PeerArena(std::move(files[0]));
  process_ = files.size() > 1 ? std::move(files[1]) : channel_.Process();
  channel_.SetPatience(kPatienceMs);
}

void Connection::Send(int64_t sequence, int64_t offset, int64_t size) {
  channel_.Send({static_cast<int64_t>(BellKind::kBatch), sequence, offset, size});
}

Bell Connection::RoundTrip(int64_t offset, int64_t size, const std::function<void()>& waiting) {
  const int64_t sequence = NextSequence();
  Send(sequence, offset, size);
  Bell answer;
  const uint64_t begin = Now();
  if (!spin_.Try([&] { return channel_.ReceiveNow(&answer); })) {
    while (!channel_.Receive(&answer)) waiting();
  }
  spin_.Came(static_cast<int64_t>(Now() - begin));
  if (answer.kind != static_cast<int64_t>(BellKind::kResult) || answer.sequence != sequence) {
    throw ProtocolError("the worker answered out of turn");
  }
  return answer;
}

}  // namespace pytriton
