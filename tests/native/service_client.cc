#include "service_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "transport/channel.h"

namespace services_test {

using data_path::ComesTrue;
using pytriton::Arena;
using pytriton::FileDescriptor;
using pytriton::InferenceCallMessage;
using pytriton::InferenceReplyMessage;
using pytriton::MessageReader;
using pytriton::Notification;
using pytriton::PeerArena;
using pytriton::ServiceNotification;

namespace {

constexpr int kPollIntervalMs = 20'000;

std::vector<std::shared_ptr<Arena>> arenas;  // of the backend's side
std::mutex arenas_mutex;

}  // namespace

ServiceClient::ServiceClient(pytriton::ServiceThread* services, bool open, const std::string& model) {
  channel_ = services->Open(nullptr, model, 1, &socket_);
  if (open) Open();
}

void ServiceClient::Open(int64_t version) {
  CHECK(Notify({static_cast<int64_t>(ServiceNotification::kOpen), 0, version, 0}, arena_.fd()));
  FileDescriptor file;
  const std::optional<Notification> notification = Hear(&file);
  if (!notification) return;
  CHECK(notification->kind == static_cast<int64_t>(ServiceNotification::kOpened));
  peer_ = PeerArena(std::move(file));
  poll_flag_ = notification->offset + pytriton::Doorbell::kSize;
  opened_ = true;
}

bool ServiceClient::Notify(const Notification& notification, int fd) {
  return pytriton::SendNotification(socket_.get(), notification, 0, fd);
}

int64_t ServiceClient::Call(const std::string& model, const std::string& data, InferenceCallMessage call) {
  call.model = model;
  const auto size = static_cast<int64_t>(data.size());
  call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, size, {size}}});
  return Send(ServiceNotification::kInfer, call, data);
}

void ServiceClient::Cancel(int64_t number) {
  CHECK(Notify({static_cast<int64_t>(ServiceNotification::kCancel), number, 0, 0}));
}

bool ServiceClient::ShowToPolling() {
  auto* words = reinterpret_cast<uint32_t*>(const_cast<char*>(peer_.At(poll_flag_, pytriton::PollFlag::kSize)));
  if (__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) == 0) return false;
  __atomic_store_n(&words[1], 1, __ATOMIC_RELEASE);
  return true;
}

std::optional<Notification> ServiceClient::Hear(FileDescriptor* file) {
  pollfd readable = {socket_.get(), POLLIN, 0};
  CHECK(poll(&readable, 1, kPollIntervalMs) == 1);
  Notification notification;
  std::vector<FileDescriptor> files;
  if (pytriton::ReceiveNotification(socket_.get(), &notification, 0, &files) != sizeof(notification))
    return std::nullopt;
  if (file != nullptr && !files.empty()) *file = std::move(files[0]);
  return notification;
}

Got ServiceClient::Take() {
  const std::optional<Notification> notification = Hear();
  CHECK(notification);
  return Take(notification);
}

Got ServiceClient::Take(const std::optional<Notification>& notification) {
  Got got{*notification, {}, {}};
  if (notification->kind != static_cast<int64_t>(ServiceNotification::kReply)) return got;
  got.reply = Read(*notification);
  for (const auto& output : got.reply.outputs) {
    if (output.offset < 0) {
      got.data.emplace_back();
      continue;
    }
    got.data.emplace_back(peer_.At(output.offset, output.size), output.size);
    peer_.Release(output.offset);
  }
  peer_.Release(notification->offset);
  return got;
}

bool ServiceClient::Has(int64_t offset) const {
  const char* state = peer_.At(offset, 0) - pytriton::kBlockHeader;
  return __atomic_load_n(reinterpret_cast<const int64_t*>(state), __ATOMIC_ACQUIRE) == 1;
}

InferenceReplyMessage ServiceClient::Read(const Notification& notification) const {
  MessageReader reader(peer_.At(notification.offset, notification.size), notification.size);
  return pytriton::DecodeReply(&reader);
}

void ServiceClient::HangUp() { shutdown(socket_.get(), SHUT_RDWR); }

void Keep(const std::shared_ptr<Arena>& arena) {
  const std::lock_guard<std::mutex> lock(arenas_mutex);
  arenas.push_back(arena);
}

void CheckNothingIsLeft(ServiceClient* client) {
  CHECK(ComesTrue([&] { return client->arena().in_use() == 0; }));
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  const std::lock_guard<std::mutex> lock(arenas_mutex);
  for (const auto& arena : arenas) CHECK(arena->in_use() == 1);  // the doorbell
}

int Run(const data_path::Behaviors& behaviors, int argc, char** argv) {
  const int result = data_path::Run(behaviors, argc, argv);
  arenas.clear();
  return result;
}

fake_server::Output EchoOf(TRITONSERVER_InferenceRequest* request) {
  const auto& input = request->inputs.at("X");
  return {"Y", input.datatype, input.shape, input.data};
}

void Echo(TRITONSERVER_InferenceRequest* request) {
  fake_server::Respond(request, {EchoOf(request)}, true);
  fake_server::Release(request);
}

Held::Held(const std::string& model) {
  fake_server::AddModel(model, [this](TRITONSERVER_InferenceRequest* request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(request);
  });
}

TRITONSERVER_InferenceRequest* Held::Take() {
  TRITONSERVER_InferenceRequest* request = nullptr;
  CHECK(ComesTrue([&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (requests_.empty()) return false;
    request = requests_.front();
    requests_.erase(requests_.begin());
    return true;
  }));
  return request;
}

}  // namespace services_test
