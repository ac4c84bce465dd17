#include "services/service_thread.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "base/system_error.h"
#include "transport/channel.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr uint64_t kStop = 0;  // channels count from 1
constexpr std::chrono::seconds kStopTimeout(5);
constexpr std::chrono::milliseconds kPollInterval(10);
constexpr std::chrono::seconds kBusyFor(1);  // after the last notification
constexpr int kMaxSleepMs = 10;              // some events do not wake a thread that sleeps on the wake flag

}  // namespace

ServiceThread::ServiceThread(std::function<void(const std::shared_ptr<Arena>&)> on_arena)
    : context_(std::make_shared<ServiceContext>()), stop_(eventfd(0, EFD_CLOEXEC)) {
  context_->poll.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!context_->poll.valid() || !stop_.valid()) throw ChannelError(SystemError("cannot wait for sockets"));
  context_->models = &models_;
  context_->on_arena = std::move(on_arena);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kStop;
  epoll_ctl(context_->poll.get(), EPOLL_CTL_ADD, stop_.get(), &event);
}

ServiceThread::~ServiceThread() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  static_cast<void>(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  context_->wake_flag.Wake();
  thread_.join();
  std::vector<std::weak_ptr<ServiceChannel>> channels;
  for (const auto& [number, channel] : channels_) {
    channel->Retire();
    channels.push_back(channel);
  }
  channels_.clear();
  // Requests in flight hold their channel.
  const auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
  for (const auto& channel : channels) {
    while (!channel.expired() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kPollInterval);
  }
}

std::shared_ptr<ServiceChannel> ServiceThread::Open(TRITONSERVER_Server* server, const std::string& model,
                                                    int64_t version, FileDescriptor* worker_end) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw ChannelError(SystemError("cannot create a socket"));
  }
  FileDescriptor mine(ends[0]);
  worker_end->Reset(ends[1]);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto channel = Add(std::move(mine), server, model, version);
  channel->SetCapacity(1);
  ServiceChannel* raw = channel.get();
  return {raw, [channel = std::move(channel)](ServiceChannel*) { channel->Close(); }};
}

void ServiceThread::ConnectController(TRITONSERVER_Server* server, const std::string& path) {
  if (path.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<ServiceChannel> connected = controllers_[path].lock();
  if (connected != nullptr && !connected->closed()) return;
  controllers_[path] = Add(ConnectTo(path, "controller"), server, "", -1);
}

std::shared_ptr<ServiceChannel> ServiceThread::Add(FileDescriptor socket, TRITONSERVER_Server* server,
                                                   const std::string& model, int64_t version) {
  const int64_t number = ++last_;
  auto channel = std::make_shared<ServiceChannel>(context_, number, std::move(socket), server, model, version);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(number);
  if (epoll_ctl(context_->poll.get(), EPOLL_CTL_ADD, channel->socket(), &event) != 0) {
    throw ChannelError(SystemError("cannot wait for a socket"));
  }
  channels_[number] = channel;
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  return channel;
}

std::shared_ptr<ServiceChannel> ServiceThread::Find(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = channels_.find(number);
  return found == channels_.end() ? nullptr : found->second;
}

void ServiceThread::Run() {
  std::array<epoll_event, 16> events;
  const auto come = [&](int timeout_ms) {
    return epoll_wait(context_->poll.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  };
  auto busy_until = std::chrono::steady_clock::now();
  uint64_t received = 0;  // by instances, too
  while (true) {
    int count = 0;
    if (std::chrono::steady_clock::now() < busy_until) {
      context_->wake_flag.Sleep(kMaxSleepMs, [&] { return (count = come(0)) <= 0; });
    } else {
      count = come(-1);
    }
    const uint64_t received_now = context_->received;
    if (received_now != received || count > 0) busy_until = std::chrono::steady_clock::now() + kBusyFor;
    received = received_now;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kStop) return;
      const auto number = static_cast<int64_t>(events[i].data.u64);
      const std::shared_ptr<ServiceChannel> channel = Find(number);
      if (channel == nullptr) continue;
      if ((events[i].events & EPOLLOUT) != 0) channel->Flush();
      if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) == 0 || channel->Receive()) continue;
      epoll_ctl(context_->poll.get(), EPOLL_CTL_DEL, channel->socket(), nullptr);
      channel->Retire();
      const std::lock_guard<std::mutex> lock(mutex_);
      channels_.erase(number);
    }
  }
}

}  // namespace pytriton
