#include "fake_worker.h"

#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "peer_codecs.h"
#include "transport/channel.h"

namespace fake_worker {

namespace {

using pytriton::Arena;
using pytriton::Block;
using pytriton::FileDescriptor;
using pytriton::MessageReader;
using pytriton::MessageWriter;
using pytriton::Notification;
using pytriton::NotificationKind;
using pytriton::PeerArena;
using pytriton::ReceiveNotification;
using pytriton::SendNotification;
using pytriton::TensorColumn;
using pytriton::TensorLocation;

constexpr int64_t kBytes = 13;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "fake worker: %s\n", what);
  std::_Exit(1);
}

// The bytes of a batch that nobody may change: all but those that say whether its requests are cancelled.
std::string Constant(const PeerArena& peer, const Taken& taken) {
  const char* message = peer.At(taken.offset, taken.size);
  const char* tensors = taken.data + std::min(taken.batch.request_count, message + taken.size - taken.data);
  return std::string(message, taken.data) + std::string(tensors, message + taken.size);
}

// Releases batches late, in a thread of its own, and checks that nobody has written over them.
class WorkerSupervisor {
 public:
  WorkerSupervisor(const PeerArena& peer, size_t kept) : peer_(peer), kept_(kept), thread_([this] { Run(); }) {}

  ~WorkerSupervisor() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void Keep(const Taken& taken) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      batches_.push_back({taken, Constant(peer_, taken)});
    }
    changed_.notify_one();
  }

 private:
  struct Kept {
    Taken taken;
    std::string copy;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || batches_.size() > kept_; });
      if (batches_.empty()) return;
      const Kept batch = std::move(batches_.front());
      batches_.pop_front();
      lock.unlock();
      if (Constant(peer_, batch.taken) != batch.copy) Fail("a batch was written over");
      peer_.Release(batch.taken.offset);
      lock.lock();
    }
  }

  const PeerArena& peer_;
  const size_t kept_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Kept> batches_;
  bool closing_ = false;
  std::thread thread_;
};

int64_t CountOf(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

// The elements `from` to `to` of a tensor.
std::string Slice(const TensorColumn& column, const char* tensor, int64_t count, int64_t from, int64_t to) {
  constexpr int64_t kLengthSize = 4;
  if (column.datatype != kBytes) {
    const int64_t item = count == 0 ? 0 : column.tensors[0].size / count;
    return {tensor + from * item, tensor + to * item};
  }
  const char* contents = tensor + count * kLengthSize;
  std::string found;
  for (int64_t i = 0; i < to; ++i) {
    uint32_t length;
    std::memcpy(&length, tensor + i * kLengthSize, kLengthSize);
    if (i >= from) found.append(contents, length);
    contents += length;
  }
  return std::string(tensor + from * kLengthSize, tensor + to * kLengthSize) + found;
}

}  // namespace

Reply& Reply::Echo(const Taken& taken, size_t request, bool final) {
  pytriton::ResponseEntry response;
  response.sequence = taken.sequence;
  response.request = static_cast<int64_t>(request);
  response.final = final;
  response.response = true;
  response.compute_start_ns = 1000;
  response.compute_end_ns = 2000;
  int64_t row = 0;
  for (size_t i = 0; i < request; ++i) row += taken.rows(i);
  for (const TensorColumn& column : taken.batch.columns) {
    TensorLocation tensor = column.tensors[column.is_stacked() ? 0 : request];
    if (tensor.offset < 0) continue;
    const int64_t count = CountOf(tensor.shape);
    const char* source = taken.data + tensor.offset;
    std::string part(source, tensor.size);
    if (column.is_stacked() && taken.batch.request_count > 1) {
      const int64_t per_row = tensor.shape[0] == 0 ? 0 : count / tensor.shape[0];
      tensor.shape[0] = taken.rows(request);
      part = Slice(column, source, count, row * per_row, (row + tensor.shape[0]) * per_row);
    }
    data_.resize(pytriton::Aligned(static_cast<int64_t>(data_.size())));
    tensor.offset = static_cast<int64_t>(data_.size());
    tensor.size = static_cast<int64_t>(part.size());
    data_ += part;
    response.outputs.push_back({column.position, column.datatype, tensor});
  }
  responses_.responses.push_back(std::move(response));
  return *this;
}

Reply& Reply::Say(pytriton::ResponseEntry response, const std::string& data) {
  data_.resize(pytriton::Aligned(static_cast<int64_t>(data_.size())));
  for (pytriton::ResponseOutput& output : response.outputs) {
    if (output.tensor.offset >= 0) output.tensor.offset += static_cast<int64_t>(data_.size());
  }
  data_ += data;
  responses_.responses.push_back(std::move(response));
  return *this;
}

Reply& Reply::Fail(const Taken& taken, size_t request, const std::string& message, bool final) {
  pytriton::ResponseEntry response;
  response.sequence = taken.sequence;
  response.request = static_cast<int64_t>(request);
  response.final = final;
  response.failure = pytriton::Failure{1, message, "", ""};  // TRITONSERVER_ERROR_INTERNAL
  return Say(std::move(response));
}

Reply& Reply::End(const Taken& taken, size_t request) {
  pytriton::ResponseEntry response;
  response.sequence = taken.sequence;
  response.request = static_cast<int64_t>(request);
  response.final = true;
  return Say(std::move(response));
}

std::string Reply::message() const {
  MessageWriter writer;
  Encode(responses_, &writer);
  return writer.ToString() + data_;
}

WorkerEnd::WorkerEnd(FileDescriptor socket, std::vector<FileDescriptor> files, int64_t doorbell, bool acknowledged)
    : socket_(std::move(socket)), files_(std::move(files)), peer_(std::move(files_[0])), arena_(int64_t{1} << 24) {
  if (doorbell != 0) (acknowledged ? acknowledgements_ : doorbell_).emplace(peer_, doorbell);
  SendNotification(socket_.get(),
                   {static_cast<int64_t>(NotificationKind::kWelcome), 0, doorbell, pytriton::kOpensGpuMemory}, 0,
                   arena_.fd());
}

std::optional<Notification> WorkerEnd::NextNotification(int timeout_ms) {
  if (!doorbell_) {
    pollfd events = {socket_.get(), POLLIN, 0};
    Notification notification;
    if (poll(&events, 1, timeout_ms) <= 0) return {};
    gone_ = ReceiveNotification(socket_.get(), &notification, 0) != sizeof(notification);
    return gone_ ? std::nullopt : std::optional(notification);
  }
  const auto begin = std::chrono::steady_clock::now();
  while (timeout_ms < 0 || std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(timeout_ms)) {
    if (const std::optional<Notification> notification = doorbell_->Take()) return notification;
    gone_ = HasEnded();
    if (gone_) break;
  }
  return {};
}

bool WorkerEnd::HasEnded() const {
  char byte = 0;
  return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

std::optional<Taken> WorkerEnd::Take(int timeout_ms) {
  const std::optional<Notification> notification = NextNotification(timeout_ms);
  if (!notification) return {};
  if (notification->kind != static_cast<int64_t>(NotificationKind::kBatch)) {
    ::fake_worker::Fail("a notification other than a batch came");
  }
  MessageReader reader(peer_.At(notification->offset, notification->size), notification->size);
  Taken taken = {notification->sequence, notification->offset, notification->size, DecodeBatch(&reader), nullptr};
  taken.data = peer_.At(notification->offset, notification->size) + reader.data_offset();
  return taken;
}

bool WorkerEnd::SendMessage(NotificationKind kind, int64_t sequence, const std::string& message) {
  const auto size = static_cast<int64_t>(message.size());
  const Block block = arena_.Allocate(size);
  std::memcpy(block.data, message.data(), size);
  return Notify({static_cast<int64_t>(kind), sequence, block.offset, size});
}

bool WorkerEnd::Notify(const Notification& notification) {
  if (!doorbell_) return SendNotification(socket_.get(), notification, 0);
  doorbell_->Notify(notification);
  return true;
}

Session Sequential(Serve serve, size_t kept) {
  return [serve = std::move(serve), kept](WorkerEnd* worker_end) {
    WorkerSupervisor supervisor(worker_end->peer(), kept);
    while (const std::optional<Taken> taken = worker_end->Take()) {
      const Served response = serve(taken->batch, taken->data);
      supervisor.Keep(*taken);
      if (response.hang_up) break;
      if (!(response.notification
                ? worker_end->Notify(*response.notification)
                : worker_end->SendMessage(NotificationKind::kResult, taken->sequence, response.message))) {
        break;
      }
    }
  };
}

std::string Whole(const pytriton::ResultMessage& result, const std::string& data) {
  MessageWriter writer;
  Encode(result, &writer);
  return writer.ToString() + data;
}

pytriton::ResultMessage EchoOf(const pytriton::BatchMessage& batch) {
  pytriton::ResultMessage result;
  result.request_count = batch.request_count;
  result.columns = batch.columns;
  return result;
}

std::string DataOf(const pytriton::BatchMessage& batch, const char* data) {
  int64_t size = 0;
  for (const pytriton::TensorColumn& column : batch.columns) {
    for (const pytriton::TensorLocation& tensor : column.tensors) size = std::max(size, tensor.offset + tensor.size);
  }
  // Without what comes first, which may change: whether the requests are cancelled.
  const int64_t flags = std::min(size, batch.request_count);
  return std::string(flags, '\0') + std::string(data + flags, data + size);
}

Served Echo(const pytriton::BatchMessage& batch, const char* data) {
  return {Whole(EchoOf(batch), DataOf(batch, data)), {}};
}

Worker::Worker(const std::string& socket, Session session, bool at_doorbell, bool acknowledged)
    : session_(std::move(session)),
      at_doorbell_(at_doorbell),
      acknowledged_(acknowledged),
      listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket.c_str());
  unlink(socket.c_str());
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Fail("cannot bind");
  if (listen(listener_.get(), 16) != 0) Fail("cannot listen");
  listening_ = std::thread([this] { Listen(); });
}

Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    for (const auto& worker_end : worker_ends_) worker_end->HangUp();
  }
  shutdown(listener_.get(), SHUT_RDWR);
  listening_.join();
  for (std::thread& thread : threads_) thread.join();
}

WorkerEnd& Worker::worker_end() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !worker_ends_.empty(); });
  return *worker_ends_.back();
}

void Worker::Trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& worker_end : worker_ends_) worker_end->arena().Trim(Arena::Clock::time_point::max());
}

void Worker::Listen() {
  for (;;) {
    FileDescriptor connected(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_ || !connected.valid()) return;
    ++connections_;
    threads_.emplace_back([this, connected = std::move(connected)]() mutable { Connect(std::move(connected)); });
  }
}

void Worker::Connect(FileDescriptor connected) {
  Notification notification;
  std::vector<FileDescriptor> files;
  const bool has_hello = ReceiveNotification(connected.get(), &notification, 0, &files) == sizeof(notification);
  if (!has_hello || notification.kind != static_cast<int64_t>(NotificationKind::kHello) || files.empty()) return;
  WorkerEnd* worker_end = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    const int64_t doorbell = at_doorbell_ ? notification.offset : 0;
    worker_ends_.push_back(
        std::make_unique<WorkerEnd>(std::move(connected), std::move(files), doorbell, acknowledged_));
    worker_end = worker_ends_.back().get();
  }
  changed_.notify_all();
  if (!session_) return;
  session_(worker_end);
  const std::lock_guard<std::mutex> lock(mutex_);  // what this session has done comes before what the next one does
  worker_end->HangUp();
}

}  // namespace fake_worker
