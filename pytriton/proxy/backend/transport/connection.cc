#include "transport/connection.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/time_slice.h"

namespace pytriton {

namespace {

constexpr int kHandshakeTimeoutMs = 5000;
constexpr int kPollIntervalMs = 50;

// Ends the polling, even if the worker has gone.
class EndOfPolling {
 public:
  explicit EndOfPolling(const Waiting& waiting) : waiting_(waiting) {}
  ~EndOfPolling() { waiting_.end_poll(); }
  EndOfPolling(const EndOfPolling&) = delete;
  EndOfPolling& operator=(const EndOfPolling&) = delete;

 private:
  const Waiting& waiting_;
};

}  // namespace

Connection::Connection(AdmissionMessage admission, int service_fd)
    : model_(std::move(admission)), channel_(model_.socket), arena_(std::make_shared<Arena>()) {
  // The doorbell, followed by the location of GPU memory, if there is any.
  const Block doorbell = arena_->Allocate(Doorbell::kSize + sizeof(DeviceLocation));
  std::memset(doorbell.data, 0, Doorbell::kSize);
  const int64_t size = Doorbell::kSize + (OfferGpuMemory(doorbell) ? int64_t{sizeof(DeviceLocation)} : 0);
  const Notification hello = {static_cast<int64_t>(NotificationKind::kHello), model_.ticket, doorbell.offset, size};
  channel_.Send(hello, arena_->fd(), service_fd);
  std::vector<FileDescriptor> files;
  Notification notification;
  channel_.SetTimeout(kHandshakeTimeoutMs);
  if (!channel_.Receive(&notification, &files)) throw ChannelError("the worker did not respond");
  if (notification.kind != static_cast<int64_t>(NotificationKind::kWelcome) || files.empty()) {
    throw ProtocolError("the worker did not accept the model instance");
  }
  if (notification.offset == doorbell.offset) {
    doorbell_ = Doorbell(doorbell.data);
  } else {
    arena_->Discard(doorbell);
  }
  if ((notification.size & kPageLocked) != 0) arena_->KeepPages();
  if (device_arena_.has_value() && (notification.size & kOpensGpuMemory) == 0) {
    gpu_failure_ = "the worker cannot open GPU memory of the server";
    device_arena_.reset();
  }
  if (!device_arena_.has_value()) model_.gpus.clear();
  worker_arena_ = PeerArena(std::move(files[0]));
  process_ = files.size() > 1 ? std::move(files[1]) : channel_.Process();
  channel_.SetTimeout(kPollIntervalMs);
}

bool Connection::OfferGpuMemory(const Block& block) {
  if (model_.gpus.empty()) return false;
  try {
    device_arena_.emplace(arena_);
    WriteLocation(device_arena_->Allocate(1, GpuIdsOf(model_.gpus).front(), block), block.data + Doorbell::kSize);
    return true;
  } catch (const cuda::CudaError& error) {
    gpu_failure_ = error.what();
    device_arena_.reset();
    return false;
  }
}

void Connection::Send(const Notification& notification) {
  if (doorbell_.valid() && model_.mode == ExecutionMode::kSequential) return doorbell_.Notify(notification);
  if (doorbell_.valid()) doorbell_.Count();
  channel_.Send(notification);
}

bool Connection::ReceiveUntil(Notification* notification, uint64_t end_ns) {
  if (spin_.Try([&] { return channel_.ReceiveNow(notification); }, [] { return true; })) return true;
  channel_.AwaitUntil(end_ns);
  return channel_.ReceiveNow(notification);
}

void Connection::RecordRoundTrip(size_t request_count, int64_t duration_ns) {
  spin_.ObserveBatchSize(request_count);
  spin_.RecordWait(duration_ns);
}

bool Connection::AwaitTaken() {
  if (!doorbell_.valid()) return true;
  doorbell_.AwaitAcknowledgement(kPollIntervalMs);
  return doorbell_.IsAcknowledged();
}

Notification Connection::RoundTrip(NotificationKind kind, size_t request_count, int64_t offset, int64_t size,
                                   const Waiting& waiting) {
  spin_.ObserveBatchSize(request_count);
  [[maybe_unused]] static thread_local const bool has_short_time_slice = RequestShortTimeSlice();
  Send({static_cast<int64_t>(kind), NextSequence(), offset, size});
  Notification notification;
  const uint64_t begin = MonotonicNs();
  const auto has_come = [&] {
    waiting.poll();
    return ReceiveNow(&notification);
  };
  // A worker that has not taken the batch by now may be waiting for this processor.
  const auto is_taken = [&] { return !doorbell_.valid() || doorbell_.IsAcknowledged(); };
  bool came;
  {
    const EndOfPolling end(waiting);
    came = spin_.Try(has_come, is_taken);
  }
  if (!came && waiting.first_check_ns != 0) {
    came = AwaitUntil(&notification, waiting.first_check_ns);
    if (!came) waiting.check();
  }
  while (!came && !Await(&notification)) waiting.check();
  spin_.RecordWait(static_cast<int64_t>(MonotonicNs() - begin));
  if (notification.kind != static_cast<int64_t>(NotificationKind::kResult) || notification.sequence != sequence_) {
    throw ProtocolError("the worker sent a result out of turn");
  }
  return notification;
}

bool Connection::ReceiveNow(Notification* notification) {
  if (!doorbell_.valid()) return channel_.ReceiveNow(notification);
  if (!doorbell_.HasNotification()) return false;
  *notification = doorbell_.Take();
  if (notification->sequence != sequence_) CheckAlive();  // the worker also notifies when it closes
  return true;
}

bool Connection::Await(Notification* notification) {
  if (!doorbell_.valid()) return channel_.Receive(notification);
  doorbell_.Sleep(kPollIntervalMs * kMillisecondNs);
  if (ReceiveNow(notification)) return true;
  CheckAlive();
  return false;
}

bool Connection::AwaitUntil(Notification* notification, uint64_t end_ns) {
  if (!doorbell_.valid()) {
    channel_.AwaitUntil(end_ns);
  } else if (const uint64_t now = MonotonicNs(); now < end_ns) {
    doorbell_.Sleep(static_cast<int64_t>(end_ns - now));
  }
  return ReceiveNow(notification);
}

void Connection::CheckAlive() const {
  if (!alive()) throw ChannelError("the worker has gone");
}

void Connection::Close() {
  channel_.Close();
  if (doorbell_.valid()) doorbell_.Notify();  // so that it checks the socket
}

}  // namespace pytriton
