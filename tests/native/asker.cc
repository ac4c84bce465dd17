#include "asker.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "channel.h"

namespace services_test {

using data_path::ComesTrue;
using pytriton::Arena;
using pytriton::Bell;
using pytriton::CallMessage;
using pytriton::CallReplyMessage;
using pytriton::FileDescriptor;
using pytriton::MessageReader;
using pytriton::PeerArena;
using pytriton::ServiceBell;

namespace {

constexpr int kPatienceMs = 20'000;

std::vector<std::shared_ptr<Arena>> arenas;  // of the backend's side
std::mutex arenas_mutex;

}  // namespace

Asker::Asker(pytriton::Services* services, bool open, const std::string& model) {
  channel_ = services->Open(nullptr, model, 1, &socket_);
  if (open) Open();
}

void Asker::Open(int64_t version) {
  CHECK(Ring({static_cast<int64_t>(ServiceBell::kOpen), 0, version, 0}, arena_.fd()));
  FileDescriptor file;
  const std::optional<Bell> bell = Hear(&file);
  if (!bell) return;
  CHECK(bell->kind == static_cast<int64_t>(ServiceBell::kOpened));
  peer_ = PeerArena(std::move(file));
  opened_ = true;
}

bool Asker::Ring(const Bell& bell, int fd) { return pytriton::SendBell(socket_.get(), bell, 0, fd); }

int64_t Asker::Call(const std::string& model, const std::string& data, CallMessage call) {
  call.model = model;
  const auto size = static_cast<int64_t>(data.size());
  call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, size, {size}}});
  return Send(ServiceBell::kCall, call, data);
}

void Asker::Cancel(int64_t number) { CHECK(Ring({static_cast<int64_t>(ServiceBell::kCancel), number, 0, 0})); }

std::optional<Bell> Asker::Hear(FileDescriptor* file) {
  pollfd readable = {socket_.get(), POLLIN, 0};
  CHECK(poll(&readable, 1, kPatienceMs) == 1);
  Bell bell;
  std::vector<FileDescriptor> files;
  if (pytriton::ReceiveBell(socket_.get(), &bell, 0, &files) != sizeof(bell)) return std::nullopt;
  if (file != nullptr && !files.empty()) *file = std::move(files[0]);
  return bell;
}

Got Asker::Take() {
  const std::optional<Bell> bell = Hear();
  CHECK(bell);
  return Take(bell);
}

Got Asker::Take(const std::optional<Bell>& bell) {
  Got got{*bell, {}, {}};
  if (bell->kind != static_cast<int64_t>(ServiceBell::kReply)) return got;
  got.reply = Read(*bell);
  for (const auto& output : got.reply.outputs) {
    if (output.offset < 0) {
      got.data.emplace_back();
      continue;
    }
    got.data.emplace_back(peer_.At(output.offset, output.size), output.size);
    peer_.Release(output.offset);
  }
  peer_.Release(bell->offset);
  return got;
}

bool Asker::Has(int64_t offset) const {
  const char* state = peer_.At(offset, 0) - pytriton::kBlockHeader;
  return __atomic_load_n(reinterpret_cast<const int64_t*>(state), __ATOMIC_ACQUIRE) == 1;
}

CallReplyMessage Asker::Read(const Bell& bell) const {
  MessageReader reader(peer_.At(bell.offset, bell.size), bell.size);
  return pytriton::DecodeReply(&reader);
}

void Asker::HangUp() { shutdown(socket_.get(), SHUT_RDWR); }

void Keep(const std::shared_ptr<Arena>& arena) {
  const std::lock_guard<std::mutex> lock(arenas_mutex);
  arenas.push_back(arena);
}

void CheckNothingIsLeft(Asker* asker) {
  CHECK(ComesTrue([&] { return asker->arena().in_use() == 0; }));
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  const std::lock_guard<std::mutex> lock(arenas_mutex);
  for (const auto& arena : arenas) CHECK(arena->in_use() == 1);  // the doorbell
}

int Run(const data_path::Behaviours& behaviours, int argc, char** argv) {
  const int result = data_path::Run(behaviours, argc, argv);
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
