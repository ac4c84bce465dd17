#include "connection.h"

#include <cstring>
#include <utility>
#include <vector>

#include "accounts.h"
#include "scheduling.h"

namespace pytriton {

namespace {

constexpr int kHandshakeTimeoutMs = 5000;
constexpr int kPatienceMs = 50;
constexpr int64_t kWorthAnnouncing = 1 << 16;  // bytes, which take longer to copy than to say that they come

}  // namespace

Connection::Connection(AdmissionMessage admission, int service_fd)
    : model_(std::move(admission)), channel_(model_.socket), arena_(std::make_shared<Arena>()) {
  const Block doorbell = arena_->Allocate(Doorbell::kSize);
  std::memset(doorbell.data, 0, Doorbell::kSize);
  const Bell hello = {static_cast<int64_t>(BellKind::kHello), model_.ticket, doorbell.offset, Doorbell::kSize};
  channel_.Send(hello, arena_->fd(), service_fd);
  std::vector<FileDescriptor> files;
  Bell answer;
  channel_.SetPatience(kHandshakeTimeoutMs);
  if (!channel_.Receive(&answer, &files)) throw ChannelError("the worker did not answer");
  if (answer.kind != static_cast<int64_t>(BellKind::kWelcome) || files.empty()) {
    throw ProtocolError("the worker did not welcome the model instance");
  }
  if (answer.offset == doorbell.offset) {
    doorbell_ = Doorbell(doorbell.data);
  } else {
    arena_->Discard(doorbell);
  }
  worker_arena_ = PeerArena(std::move(files[0]));
  process_ = files.size() > 1 ? std::move(files[1]) : channel_.Process();
  channel_.SetPatience(kPatienceMs);
}

void Connection::Send(int64_t sequence, int64_t offset, int64_t size) {
  const Bell bell = {static_cast<int64_t>(BellKind::kBatch), sequence, offset, size};
  if (doorbell_.valid()) {
    doorbell_.Ring(bell);
  } else {
    channel_.Send(bell);
  }
}

void Connection::Announce(size_t request_count, int64_t offset, int64_t size) {
  spin_.Met(request_count);
  if (size < kWorthAnnouncing || !doorbell_.valid() || !Spin::IsAllowed() || spin_.IsCrowded()) return;
  doorbell_.Ring({static_cast<int64_t>(BellKind::kHead), NextSequence(), offset, size});
  is_announced_ = true;
}

Bell Connection::RoundTrip(int64_t offset, int64_t size, const std::function<void()>& waiting) {
  [[maybe_unused]] static thread_local const bool wakes_soon = WakeSoon();
  if (std::exchange(is_announced_, false)) {
    doorbell_.RingForData();
  } else {
    Send(NextSequence(), offset, size);
  }
  Bell answer;
  const uint64_t begin = Now();
  const auto has_come = [&] { return ReceiveNow(&answer); };
  // A worker that has not taken the batch by now may wait for this very processor.
  const auto is_taken = [&] { return !doorbell_.valid() || doorbell_.IsHeard(); };
  if (!spin_.Try(has_come, is_taken)) {
    while (!Await(&answer)) waiting();
  }
  spin_.Came(static_cast<int64_t>(Now() - begin));
  if (answer.kind != static_cast<int64_t>(BellKind::kResult) || answer.sequence != sequence_) {
    throw ProtocolError("the worker answered out of turn");
  }
  return answer;
}

bool Connection::ReceiveNow(Bell* answer) {
  if (!doorbell_.valid()) return channel_.ReceiveNow(answer);
  if (!doorbell_.HasRung()) return false;
  *answer = doorbell_.Take();
  if (answer->sequence != sequence_) CheckAlive();  // the worker rings when it closes, too
  return true;
}

bool Connection::Await(Bell* answer) {
  if (!doorbell_.valid()) return channel_.Receive(answer);
  doorbell_.Sleep(kPatienceMs);
  if (ReceiveNow(answer)) return true;
  CheckAlive();
  return false;
}

void Connection::CheckAlive() const {
  if (!alive()) throw ChannelError("the worker is gone");
}

void Connection::Close() {
  channel_.Close();
  if (doorbell_.valid()) doorbell_.Ring();  // so that it looks at the socket
}

}  // namespace pytriton
