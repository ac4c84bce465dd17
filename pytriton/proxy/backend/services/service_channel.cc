#include "services/service_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "transport/channel.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr int kNotificationsAtATime = 64;  // lets other channels be served

int64_t ToWord(ServiceNotification kind) { return static_cast<int64_t>(kind); }

}  // namespace

ServiceChannel::ServiceChannel(std::shared_ptr<ServiceContext> context, int64_t number, FileDescriptor socket,
                               TRITONSERVER_Server* server, std::string model, int64_t version)
    : context_(std::move(context)),
      number_(number),
      socket_(std::move(socket)),
      server_(server),
      model_(std::move(model)),
      version_(version),
      metrics_(&context_->families) {}

void ServiceChannel::SetCapacity(int64_t capacity) {
  const std::lock_guard<std::mutex> lock(callers_mutex_);
  if (closed_ && capacity != 0) return;
  context_->capacities.Add(model_, version_, capacity - capacity_);
  capacity_ = capacity;
}

void ServiceChannel::BeginCallChain(int64_t batch, const CallChain& call_chain) {
  const std::lock_guard<std::mutex> lock(callers_mutex_);
  call_chains_[batch] = call_chain;
}

void ServiceChannel::EndCallChain(int64_t batch) {
  const std::lock_guard<std::mutex> lock(callers_mutex_);
  call_chains_.erase(batch);
}

void ServiceChannel::Close() {
  if (closed_.exchange(true)) return;
  SetCapacity(0);
  shutdown(socket_.get(), SHUT_RDWR);  // the service thread notices
  {
    const std::lock_guard<std::mutex> lock(send_mutex_);
    if (doorbell_.valid()) doorbell_.Notify();  // so that the worker checks the socket
  }
  const std::lock_guard<std::mutex> lock(calls_mutex_);
  for (const auto& [number, inference] : calls_) inference->Cancel();
}

void ServiceChannel::Retire() {
  Close();
  const std::lock_guard<std::mutex> lock(receive_mutex_);
  metrics_.Clear();
}

void ServiceChannel::Poll() {
  if (!can_poll_.load(std::memory_order_acquire)) return;
  if (!is_polling_) poll_flag_.Begin();
  is_polling_ = true;
  if (poll_flag_.TakeSent()) ReceiveWhilePolling();
}

void ServiceChannel::EndPolling() {
  if (!is_polling_) return;
  is_polling_ = false;
  poll_flag_.End();
  ReceiveWhilePolling();
}

void ServiceChannel::ReceiveWhilePolling() {
  if (!Receive()) Close();  // the service thread notices
}

bool ServiceChannel::Receive() {
  const std::lock_guard<std::mutex> lock(receive_mutex_);
  for (int i = 0; i < kNotificationsAtATime; ++i) {
    Notification notification;
    std::vector<FileDescriptor> files;
    const ssize_t received = ReceiveNotification(socket_.get(), &notification, MSG_DONTWAIT, &files);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (received <= 0 || closed_) return false;
    ++context_->received;
    try {
      if (received != static_cast<ssize_t>(sizeof(notification)))
        throw ProtocolError("the worker sent a malformed notification");
      Handle(notification, files.empty() ? FileDescriptor() : std::move(files[0]));
    } catch (const std::exception& error) {
      Log(TRITONSERVER_LOG_ERROR,
          "model '" + model_ + "': its worker's service channel is closed: " + std::string(error.what()));
      return false;
    }
  }
  return true;
}

void ServiceChannel::Handle(const Notification& notification, FileDescriptor file) {
  const auto kind = static_cast<ServiceNotification>(notification.kind);
  if (kind == ServiceNotification::kOpen) return Open(notification, std::move(file));
  if (arena_ == nullptr) throw ProtocolError("the worker sent a call before it opened the channel");
  switch (kind) {
    case ServiceNotification::kInfer:
      return Call(notification);
    case ServiceNotification::kCancel:
      return Cancel(notification.sequence);
    case ServiceNotification::kModel:
      return DoWithModel(notification);
    case ServiceNotification::kMetric:
      return DoWithMetric(notification);
    case ServiceNotification::kLog:
      return WriteLog(notification);
    default:
      throw ProtocolError("unknown notification of kind " + std::to_string(notification.kind));
  }
}

void ServiceChannel::Open(const Notification& notification, FileDescriptor file) {
  if (notification.offset != kProtocolVersion) {
    throw ProtocolError("it speaks version " + std::to_string(notification.offset) +
                        " of the proxy protocol, the backend " + std::to_string(kProtocolVersion) +
                        ": install the same pytriton on both sides");
  }
  if (!file.valid() || arena_ != nullptr) throw ProtocolError("the worker opened the channel out of turn");
  worker_arena_ = PeerArena(std::move(file));
  arena_ = std::make_shared<Arena>();
  device_arena_.emplace(arena_);
  context_->on_arena(arena_);
  constexpr int64_t kSize = Doorbell::kSize + PollFlag::kSize;
  const Block words = arena_->Allocate(kSize);
  std::memset(words.data, 0, kSize);
  poll_flag_ = PollFlag(words.data + Doorbell::kSize);
  can_poll_.store(true, std::memory_order_release);
  const std::lock_guard<std::mutex> lock(send_mutex_);
  const Notification opened = {ToWord(ServiceNotification::kOpened), 0, words.offset, kSize};
  if (!SendNotification(socket_.get(), opened, MSG_DONTWAIT, arena_->fd(), context_->wake_flag.fd())) {
    throw ChannelError("the worker closed the channel before it was opened");
  }
  doorbell_ = Doorbell(words.data);
}

PeerBlock ServiceChannel::MessageOf(const Notification& notification) const {
  return PeerBlock(&worker_arena_, notification.offset, notification.size);
}

void ServiceChannel::Call(const Notification& notification) {
  ++call_count_;
  try {
    PeerBlock message = MessageOf(notification);
    MessageReader reader(message.data(), message.size());
    const InferenceCallMessage call = DecodeCall(&reader);
    const CallChain call_chain = CallersOfBatch(call.batch);
    if (IsCycle(call_chain, call.model, call.version, context_->capacities)) {
      throw TritonError(TRITONSERVER_ERROR_UNAVAILABLE, "the request would deadlock: all instances of model '" +
                                                            call.model + "' are waiting for it (" +
                                                            DescribeChain(call_chain, call.model) +
                                                            "): break the cycle, or give the model more instances");
    }
    const char* const data = message.data() + reader.data_offset();
    InferenceRequest::Start(shared_from_this(), notification.sequence, call, data, std::move(message),
                            ToText(call_chain));
  } catch (const TritonError& error) {
    return Fail(notification.sequence, error.code(), error.what());
  } catch (const cuda::CudaError& error) {
    return Fail(notification.sequence, TRITONSERVER_ERROR_INTERNAL, error.what());
  }
  if (closed_) Cancel(notification.sequence);
}

void ServiceChannel::Cancel(int64_t number) {
  const std::lock_guard<std::mutex> lock(calls_mutex_);
  const auto found = calls_.find(number);
  if (found != calls_.end()) found->second->Cancel();
}

void ServiceChannel::DoWithModel(const Notification& notification) {
  const bool started = context_->models->Start([channel = shared_from_this(), notification] {
    bool ready = false;
    try {
      const PeerBlock message = channel->MessageOf(notification);
      MessageReader reader(message.data(), message.size());
      const ModelMessage operation = DecodeModel(&reader, message.size());
      ready = ModelControl::Do(channel->server_, operation, message.data() + reader.data_offset());
    } catch (const TritonError& error) {
      return channel->Fail(notification.sequence, error.code(), error.what());
    } catch (const std::exception& error) {
      return channel->Fail(notification.sequence, TRITONSERVER_ERROR_INTERNAL, error.what());
    }
    channel->Send({ToWord(ServiceNotification::kDone), notification.sequence, ready ? 1 : 0, 0});
  });
  if (started) return;
  MessageOf(notification).Release();
  Fail(notification.sequence, TRITONSERVER_ERROR_UNAVAILABLE,
       "the server cannot load, unload or look up a model: it cannot start another thread; raise the limit of threads "
       "(ulimit -u, or pids of a container), or send the request again later");
}

void ServiceChannel::DoWithMetric(const Notification& notification) {
  PeerBlock message = MessageOf(notification);
  MessageReader reader(message.data(), message.size());
  const MetricMessage operation = DecodeMetric(&reader);
  message.Release();
  try {
    const int64_t result = metrics_.Do(operation);
    if (notification.sequence != 0) Send({ToWord(ServiceNotification::kDone), notification.sequence, result, 0});
  } catch (const TritonError& error) {
    if (notification.sequence != 0) Fail(notification.sequence, error.code(), error.what());
  }
}

void ServiceChannel::WriteLog(const Notification& notification) {
  PeerBlock message = MessageOf(notification);
  MessageReader reader(message.data(), message.size());
  const LogMessage line = DecodeLog(&reader);
  message.Release();
  LogIfError(TRITONSERVER_LogMessage(static_cast<TRITONSERVER_LogLevel>(line.level), line.file.c_str(),
                                     static_cast<int>(line.line), line.text.c_str()),
             "cannot write a worker's line to the log");
}

void ServiceChannel::Fail(int64_t number, TRITONSERVER_Error_Code code, const std::string& message) {
  InferenceReplyMessage reply;
  reply.final = true;
  reply.failed = true;
  reply.code = code;
  reply.message = message;
  Reply(number, reply);
}

const cuda::Memory& ServiceChannel::AllocateOnDevice(int64_t size, const cuda::GpuId& gpu, const Block& block) {
  const cuda::Memory& memory = device_arena_->Allocate(size, gpu, block);
  WriteLocation(memory, block.data);
  return memory;
}

void ServiceChannel::Add(int64_t number, InferenceRequest* inference) {
  const std::lock_guard<std::mutex> lock(calls_mutex_);
  if (!calls_.emplace(number, inference).second) throw ProtocolError("the worker used the same number for two calls");
}

void ServiceChannel::Remove(int64_t number) {
  const std::lock_guard<std::mutex> lock(calls_mutex_);
  calls_.erase(number);
}

bool ServiceChannel::Reply(int64_t number, const InferenceReplyMessage& message) {
  if (closed_) return false;
  MessageWriter writer;
  Encode(message, &writer);
  Block block;
  try {
    block = arena_->Allocate(writer.head_size());
  } catch (const ArenaError&) {
    Send({ToWord(ServiceNotification::kReply), number, 0, 0});
    return false;
  }
  writer.CopyTo(block.data);
  if (Send({ToWord(ServiceNotification::kReply), number, block.offset, writer.head_size()})) return true;
  arena_->Discard(block);
  return false;
}

void ServiceChannel::SendActivity(int64_t number, int64_t activity, int64_t timestamp_ns) {
  Send({ToWord(ServiceNotification::kActivity), number, activity, timestamp_ns});
}

bool ServiceChannel::Send(const Notification& notification) {
  const std::lock_guard<std::mutex> lock(send_mutex_);
  if (closed_) return false;
  if (unsent_.empty() && SendNow(notification)) return true;
  if (errno != EAGAIN && errno != EWOULDBLOCK && unsent_.empty()) return false;
  unsent_.push_back(notification);
  if (unsent_.size() == 1) AwaitRoom(true);
  return true;
}

bool ServiceChannel::SendNow(const Notification& notification) {
  if (!SendNotification(socket_.get(), notification, MSG_DONTWAIT)) return false;
  if (doorbell_.valid()) doorbell_.Notify();
  return true;
}

void ServiceChannel::Flush() {
  const std::lock_guard<std::mutex> lock(send_mutex_);
  while (!unsent_.empty() && SendNow(unsent_.front())) unsent_.pop_front();
  if (unsent_.empty()) AwaitRoom(false);
}

void ServiceChannel::AwaitRoom(bool awaits) {
  epoll_event event = {};
  event.events = awaits ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(number_);
  epoll_ctl(context_->poll.get(), EPOLL_CTL_MOD, socket_.get(), &event);
}

CallChain ServiceChannel::CallersOfBatch(int64_t batch) {
  if (batch < 0) return {};
  CallChain call_chain;
  {
    const std::lock_guard<std::mutex> lock(callers_mutex_);
    const auto found = call_chains_.find(batch);
    if (found != call_chains_.end()) call_chain = found->second;
  }
  const std::string place = std::to_string(reinterpret_cast<uintptr_t>(this)) + ":" + std::to_string(batch);
  Join(&call_chain, {{place, context_->capacities.Of(model_, version_), version_, model_}});
  return call_chain;
}

}  // namespace pytriton
