#include "fake_worker.h"

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

namespace fake_worker {

namespace {

using pytriton::Arena;
using pytriton::Bell;
using pytriton::BellKind;
using pytriton::Block;
using pytriton::FileDescriptor;
using pytriton::MessageReader;
using pytriton::MessageWriter;
using pytriton::PeerArena;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "fake worker: %s\n", what);
  std::_Exit(1);
}

// False when the other side is gone.
bool Receive(int socket, Bell* bell, FileDescriptor* fd = nullptr) {
  iovec data = {bell, sizeof(*bell)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(*bell)) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && fd != nullptr) {
    int value;
    std::memcpy(&value, CMSG_DATA(header), sizeof(value));
    fd->Reset(value);
  }
  return true;
}

bool Send(int socket, Bell bell, int fd = -1) {
  iovec data = {&bell, sizeof(bell)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(bell);
}

// Releases batches late, in a thread of its own, and checks that nobody has written over them.
class Keeper {
 public:
  Keeper(const PeerArena& peer, size_t kept) : peer_(peer), kept_(kept), thread_([this] { Run(); }) {}

  ~Keeper() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void Keep(int64_t offset, int64_t size) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      batches_.push_back({offset, std::string(peer_.At(offset, size), size)});
    }
    changed_.notify_one();
  }

 private:
  struct Kept {
    int64_t offset;
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
      const auto size = static_cast<int64_t>(batch.copy.size());
      if (std::memcmp(peer_.At(batch.offset, size), batch.copy.data(), size) != 0) Fail("a batch was written over");
      peer_.Release(batch.offset);
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

}  // namespace

std::string Whole(const pytriton::ResultMessage& result, const std::string& data) {
  MessageWriter writer;
  Encode(result, &writer);
  std::string message(writer.head_size(), '\0');
  writer.CopyTo(message.data());
  return message + data;
}

pytriton::ResultMessage EchoOf(const pytriton::BatchMessage& batch) {
  pytriton::ResultMessage result;
  result.request_count = batch.request_count;
  result.columns = batch.columns;
  return result;
}

std::string DataOf(const pytriton::BatchMessage& batch, const char* data) {
  int64_t size = 0;
  for (const pytriton::Column& column : batch.columns) {
    for (const pytriton::Tensor& tensor : column.tensors) size = std::max(size, tensor.offset + tensor.size);
  }
  return {data, data + size};
}

Answer Echo(const pytriton::BatchMessage& batch, const char* data) {
  return {Whole(EchoOf(batch), DataOf(batch, data)), {}};
}

Worker::Worker(const std::string& socket, Serve serve, size_t kept)
    : serve_(std::move(serve)), kept_(kept), listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
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
    for (int socket : open_) shutdown(socket, SHUT_RDWR);
  }
  shutdown(listener_.get(), SHUT_RDWR);
  listening_.join();
  for (std::thread& thread : threads_) thread.join();
}

void Worker::Trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::weak_ptr<Arena>& weak : arenas_) {
    if (const std::shared_ptr<Arena> arena = weak.lock()) arena->Trim(Arena::Clock::time_point::max());
  }
}

void Worker::Listen() {
  for (;;) {
    FileDescriptor connected(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_ || !connected.valid()) return;
    ++connections_;
    open_.push_back(connected.get());
    threads_.emplace_back([this, connected = std::move(connected)]() mutable { Connect(std::move(connected)); });
  }
}

void Worker::Connect(FileDescriptor connected) {
  const int socket = connected.get();
  Bell bell;
  FileDescriptor file;
  if (Receive(socket, &bell, &file) && bell.kind == static_cast<int64_t>(BellKind::kHello) && file.valid()) {
    const PeerArena peer(std::move(file));
    const auto arena = std::make_shared<Arena>(int64_t{1} << 24);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      arenas_.push_back(arena);
    }
    Keeper keeper(peer, kept_);
    Send(socket, {static_cast<int64_t>(BellKind::kWelcome), 0, 0, 0}, arena->fd());
    while (Receive(socket, &bell)) {
      if (bell.kind != static_cast<int64_t>(BellKind::kBatch)) Fail("a bell other than a batch's rang");
      const char* message = peer.At(bell.offset, bell.size);
      MessageReader reader(message, bell.size);
      const pytriton::BatchMessage batch = DecodeBatch(&reader);
      const Answer answer = serve_(batch, message + reader.data_offset());
      keeper.Keep(bell.offset, bell.size);
      if (answer.hang_up) break;
      const auto size = static_cast<int64_t>(answer.message.size());
      const Block block = arena->Allocate(size);
      std::memcpy(block.data, answer.message.data(), size);
      const Bell result = {static_cast<int64_t>(BellKind::kResult), bell.sequence, block.offset, size};
      if (!Send(socket, answer.bell.value_or(result))) break;
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  open_.erase(std::find(open_.begin(), open_.end(), socket));
  connected.Reset();
}

}  // namespace fake_worker
