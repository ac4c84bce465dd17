// Workers that ask the server over their service channels, by behaviours: `services_test BEHAVIOUR`.
#include "services.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "channel.h"
#include "data_path.h"
#include "fake_server.h"

namespace {

using data_path::Contains;
using pytriton::Arena;
using pytriton::Bell;
using pytriton::Block;
using pytriton::CallMessage;
using pytriton::CallReplyMessage;
using pytriton::FileDescriptor;
using pytriton::MessageReader;
using pytriton::MessageWriter;
using pytriton::MetricMessage;
using pytriton::MetricOrder;
using pytriton::ModelMessage;
using pytriton::ModelOrder;
using pytriton::PeerArena;
using pytriton::ServiceBell;
using pytriton::ServiceChannel;
using pytriton::Services;

constexpr int kPatienceMs = 20'000;

bool WaitUntil(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A reply, and the outputs' bytes.
struct Got {
  Bell bell;
  CallReplyMessage reply;
  std::vector<std::string> data;
};

// A worker's end of a channel. For one thread.
class Asker {
 public:
  explicit Asker(Services* services, bool open = true, const std::string& model = "asker") {
    channel_ = services->Open(nullptr, model, 1, &socket_);
    if (open) Open();
  }

  void Open(int64_t version = pytriton::kProtocolVersion) {
    CHECK(Ring({static_cast<int64_t>(ServiceBell::kOpen), 0, version, 0}, arena_.fd()));
    FileDescriptor file;
    const std::optional<Bell> bell = Hear(&file);
    if (!bell) return;
    CHECK(bell->kind == static_cast<int64_t>(ServiceBell::kOpened));
    peer_ = PeerArena(std::move(file));
    opened_ = true;
  }

  bool opened() const { return opened_; }
  ServiceChannel* channel() { return channel_.get(); }
  Arena& arena() { return arena_; }

  bool Ring(const Bell& bell, int fd = -1) { return pytriton::SendBell(socket_.get(), bell, 0, fd); }

  template <typename Message>
  int64_t Send(ServiceBell kind, const Message& message, const std::string& data = "") {
    MessageWriter writer;
    Encode(message, &writer);
    const auto size = writer.head_size() + static_cast<int64_t>(data.size());
    const Block block = arena_.Allocate(size);
    writer.CopyTo(block.data);
    std::memcpy(block.data + writer.head_size(), data.data(), data.size());
    CHECK(Ring({static_cast<int64_t>(kind), ++last_, block.offset, size}));
    return last_;
  }

  // A call with one input of bytes as numbers.
  int64_t Call(const std::string& model, const std::string& data, CallMessage call = {}) {
    call.model = model;
    const auto size = static_cast<int64_t>(data.size());
    call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, size, {size}}});
    return Send(ServiceBell::kCall, call, data);
  }

  void Cancel(int64_t number) { CHECK(Ring({static_cast<int64_t>(ServiceBell::kCancel), number, 0, 0})); }

  // The next bell; nothing when the channel has ended.
  std::optional<Bell> Hear(FileDescriptor* file = nullptr) {
    pollfd readable = {socket_.get(), POLLIN, 0};
    CHECK(poll(&readable, 1, kPatienceMs) == 1);
    Bell bell;
    std::vector<FileDescriptor> files;
    if (pytriton::ReceiveBell(socket_.get(), &bell, 0, &files) != sizeof(bell)) return std::nullopt;
    if (file != nullptr && !files.empty()) *file = std::move(files[0]);
    return bell;
  }

  // The next reply, whose blocks are given back.
  Got Take() {
    const std::optional<Bell> bell = Hear();
    CHECK(bell);
    return Take(bell);
  }

  // Whether the block that starts at `offset` is still this worker's.
  bool Has(int64_t offset) const {
    const char* state = peer_.At(offset, 0) - pytriton::kBlockHeader;
    return __atomic_load_n(reinterpret_cast<const int64_t*>(state), __ATOMIC_ACQUIRE) == 1;
  }

  CallReplyMessage Read(const Bell& bell) const {
    MessageReader reader(peer_.At(bell.offset, bell.size), bell.size);
    return pytriton::DecodeReply(&reader);
  }

  Got Take(const std::optional<Bell>& bell) {
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

  void HangUp() { shutdown(socket_.get(), SHUT_RDWR); }
  // As the instance ends.
  void Retire() { channel_.reset(); }

 private:
  FileDescriptor socket_;
  std::shared_ptr<ServiceChannel> channel_;
  Arena arena_{int64_t{1} << 30};
  PeerArena peer_;
  bool opened_ = false;
  int64_t last_ = 0;
};

std::vector<std::shared_ptr<Arena>> arenas;  // of the backend's side
std::mutex arenas_mutex;

void Keep(const std::shared_ptr<Arena>& arena) {
  const std::lock_guard<std::mutex> lock(arenas_mutex);
  arenas.push_back(arena);
}

fake_server::Output EchoOf(TRITONSERVER_InferenceRequest* request) {
  const auto& input = request->inputs.at("X");
  return {"Y", input.datatype, input.shape, input.data};
}

void Echo(TRITONSERVER_InferenceRequest* request) {
  fake_server::Respond(request, {EchoOf(request)}, true);
  fake_server::Release(request);
}

// Keeps requests for the test.
class Held {
 public:
  explicit Held(const std::string& model) {
    fake_server::AddModel(model, [this](TRITONSERVER_InferenceRequest* request) {
      const std::lock_guard<std::mutex> lock(mutex_);
      requests_.push_back(request);
    });
  }

  TRITONSERVER_InferenceRequest* Take() {
    TRITONSERVER_InferenceRequest* request = nullptr;
    CHECK(WaitUntil([&] {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (requests_.empty()) return false;
      request = requests_.front();
      requests_.erase(requests_.begin());
      return true;
    }));
    return request;
  }

 private:
  std::mutex mutex_;
  std::vector<TRITONSERVER_InferenceRequest*> requests_;
};

void CheckNothingIsLeft(Asker* asker) {
  CHECK(WaitUntil([&] { return asker->arena().in_use() == 0; }));
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
  const std::lock_guard<std::mutex> lock(arenas_mutex);
  for (const auto& arena : arenas) CHECK(arena->in_use() == 0);
}

void CallsComeBack() {
  Services services(Keep);
  fake_server::AddModel("echo", Echo);
  Asker asker(&services);
  std::mt19937_64 random(1);
  for (int64_t size : {0, 1, 4096, 3'000'000}) {
    const std::string sent = data_path::Noise(size, &random);
    CallMessage call;
    call.request_id = "an id";
    const int64_t number = asker.Call("echo", sent, call);
    const Got got = asker.Take();
    CHECK(got.bell.sequence == number && got.reply.final && got.reply.response && !got.reply.failed);
    CHECK(got.reply.model == "echo" && got.reply.version == 1 && got.reply.request_id == "an id");
    CHECK(got.reply.parameters.size() == 1 && got.reply.parameters[0].number == 7);
    CHECK(got.data[0] == sent && got.reply.outputs[0].shape == std::vector<int64_t>{size});
  }
  CheckNothingIsLeft(&asker);
}

void RepliesAreTheWorkersUntilItReleasesThem() {
  Services services(Keep);
  fake_server::AddModel("echo", Echo);
  Asker asker(&services);
  asker.Call("echo", "data");
  const std::optional<Bell> bell = asker.Hear();
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
  CHECK(asker.Has(bell->offset) && asker.Has(asker.Read(*bell).outputs[0].offset));
  CHECK(asker.Take(bell).data[0] == "data");
  CheckNothingIsLeft(&asker);
}

void WhatIsAskedReachesTheServer() {
  Services services(Keep);
  Held held("held");
  Asker asker(&services);
  CallMessage call;
  call.flags = 3;
  call.correlation_text = "seven";
  call.all_outputs = false;
  call.outputs = {"Z"};
  call.parameters = {{"a", pytriton::ParameterType::kString, "text", 0}, {"b", pytriton::ParameterType::kBool, "", 1}};
  call.batch = 0;
  asker.Call("held", "data", call);
  TRITONSERVER_InferenceRequest* request = held.Take();
  CHECK(request->flags == 3 && request->correlation == "seven" && request->outputs == data_path::Strings{"Z"});
  CHECK(request->parameters.at("a") == "text" && request->parameters.at("b") == "true");
  CHECK(Contains(request->parameters.at(pytriton::kCallersParameter), " asker\n"));
  CHECK(request->inputs.at("X").data == "data");
  fake_server::End(request);
  CHECK(request->IsUntouched());
  fake_server::Release(request);
  CHECK(asker.Take().reply.final);
  CheckNothingIsLeft(&asker);
}

void StringsHaveTheirLengthsFirst() {
  Services services(Keep);
  fake_server::AddModel("strings", [](TRITONSERVER_InferenceRequest* request) {
    fake_server::Respond(request, {{"Y", TRITONSERVER_TYPE_BYTES, {3}, data_path::Serialized({"one", "", "three"})}},
                         true);
    fake_server::Release(request);
  });
  fake_server::AddModel("nonsense", [](TRITONSERVER_InferenceRequest* request) {
    fake_server::Respond(request, {{"Y", TRITONSERVER_TYPE_BYTES, {3}, std::string("\xff\xff\xff\x7f nonsense", 13)}},
                         true);
    fake_server::Release(request);
  });
  Asker asker(&services);
  asker.Call("strings", "");
  CHECK(asker.Take().data[0] == std::string("\3\0\0\0\0\0\0\0\5\0\0\0onethree", 20));
  asker.Call("nonsense", "");
  const Got got = asker.Take();
  CHECK(got.reply.failed && Contains(got.reply.message, "'Y' does not match its shape"));
  CheckNothingIsLeft(&asker);
}

void StreamsHaveAnyNumberOfResponses() {
  Services services(Keep);
  fake_server::AddModel("stream", [](TRITONSERVER_InferenceRequest* request) {
    for (int i = 0; i < 3; ++i) fake_server::Respond(request, {EchoOf(request)}, false);
    fake_server::Release(request);  // which is allowed: a factory may go on
    fake_server::End(request);
  });
  Asker asker(&services);
  asker.Call("stream", "data");
  for (int i = 0; i < 3; ++i) {
    const Got got = asker.Take();
    CHECK(!got.reply.final && got.data[0] == "data");
  }
  const Got end = asker.Take();
  CHECK(end.reply.final && !end.reply.response && !end.reply.failed);
  CheckNothingIsLeft(&asker);
}

void ErrorsReachTheWorker() {
  Services services(Keep);
  fake_server::AddModel("fails", [](TRITONSERVER_InferenceRequest* request) {
    fake_server::RespondError(request, TRITONSERVER_ERROR_INVALID_ARG, "no good");
    fake_server::Release(request);
  });
  fake_server::AddModel("absent", nullptr);
  Asker asker(&services);
  asker.Call("nobody", "data");
  const Got unknown = asker.Take();
  CHECK(unknown.reply.failed && unknown.reply.code == TRITONSERVER_ERROR_NOT_FOUND && unknown.reply.final);
  asker.Call("absent", "data");
  const Got refused = asker.Take();
  CHECK(refused.reply.failed && refused.reply.code == TRITONSERVER_ERROR_UNAVAILABLE && refused.reply.final);
  asker.Call("fails", "data");
  const Got failed = asker.Take();
  CHECK(failed.reply.failed && failed.reply.code == TRITONSERVER_ERROR_INVALID_ARG &&
        failed.reply.message == "no good");
  CheckNothingIsLeft(&asker);
}

void CancellingReachesTheServer() {
  Services services(Keep);
  Held held("held");
  Asker asker(&services);
  const int64_t number = asker.Call("held", "data");
  TRITONSERVER_InferenceRequest* request = held.Take();
  asker.Cancel(number + 5);  // which nobody has
  asker.Cancel(number);
  CHECK(WaitUntil([&] { return request->cancelled.load(); }));
  fake_server::Release(request);
  asker.Cancel(number);  // the server may have released it, and still be at it
  fake_server::RespondError(request, TRITONSERVER_ERROR_CANCELLED, "cancelled");
  CHECK(asker.Take().reply.code == TRITONSERVER_ERROR_CANCELLED);
  asker.Cancel(number);
  CheckNothingIsLeft(&asker);
}

void CyclesAreRefused() {
  Services services(Keep);
  Held held("asker");
  Asker asker(&services);
  asker.channel()->SetCapacity(2);
  CallMessage call;
  call.batch = 1;
  asker.Call("asker", "data", call);
  TRITONSERVER_InferenceRequest* request = held.Take();
  // Which is served as batch 2.
  asker.channel()->Began(2, pytriton::CallersOf(request->parameters.at(pytriton::kCallersParameter)));
  call.batch = 2;
  asker.Call("asker", "data", call);
  const Got got = asker.Take();
  CHECK(got.reply.failed && Contains(got.reply.message, "'asker' asks 'asker' asks 'asker'"));
  asker.channel()->Ended(2);
  asker.Call("asker", "data", call);
  Echo(held.Take());
  Echo(request);
  asker.Take();
  asker.Take();
  CheckNothingIsLeft(&asker);
}

void AWorkerThatHangsUpHasItsCallsCancelled() {
  Services services(Keep);
  Held held("held");
  TRITONSERVER_InferenceRequest* request = nullptr;
  {
    Asker asker(&services);
    asker.Call("held", "data");
    request = held.Take();
    asker.HangUp();
    CHECK(WaitUntil([&] { return request->cancelled.load(); }));
  }
  CHECK(request->IsUntouched());
  Echo(request);
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
}

void AnInstanceThatEndsHasItsCallsCancelled() {
  Services services(Keep);
  Held held("held");
  Asker asker(&services);
  asker.Call("held", "data");
  TRITONSERVER_InferenceRequest* request = held.Take();
  asker.Retire();
  CHECK(request->cancelled);
  CHECK(!asker.Hear());
  Echo(request);
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
}

void TheBackendEndsBehindItsCalls() {
  Held held("held");
  std::thread late;
  {
    Services services(Keep);
    Asker asker(&services);
    asker.Call("held", "data");
    TRITONSERVER_InferenceRequest* request = held.Take();
    late = std::thread([request] {
      CHECK(WaitUntil([&] { return request->cancelled.load(); }));
      Echo(request);
    });
    asker.HangUp();
  }
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
  late.join();
}

void AWorkerThatDoesNotReadIsHeard() {
  Services services(Keep);
  fake_server::AddModel("echo", Echo);
  Asker asker(&services);
  constexpr int kCalls = 3000;
  for (int i = 0; i < kCalls; ++i) asker.Call("echo", std::to_string(i));
  CHECK(WaitUntil([&] { return asker.arena().in_use() == 0; }));
  for (int i = 0; i < kCalls; ++i) CHECK(asker.Take().data[0] == std::to_string(i));
  CheckNothingIsLeft(&asker);
}

int64_t Do(Asker* asker, const MetricMessage& message) {
  asker->Send(ServiceBell::kMetric, message);
  const Got got = asker->Take();
  CHECK(got.bell.kind == static_cast<int64_t>(ServiceBell::kDone));
  return got.bell.offset;
}

void MetricsGoWithTheLastThatHasThem() {
  Services services(Keep);
  Held held("held");
  Asker one(&services);
  Asker other(&services);
  for (Asker* asker : {&one, &other}) {
    MetricMessage message;
    message.order = MetricOrder::kFamily;
    message.name = "hits";
    message.number = Do(asker, message);
    message.order = MetricOrder::kMetric;
    message.number = Do(asker, message);
    message.order = MetricOrder::kIncrement;
    message.value = 2;
    Do(asker, message);
  }
  CHECK(fake_server::MetricOf("hits") == 2);
  other.Call("held", "data");  // a call in flight holds the channel
  TRITONSERVER_InferenceRequest* request = held.Take();
  one.HangUp();
  other.Retire();
  CHECK(WaitUntil([] { return std::isnan(fake_server::MetricOf("hits")); }));
  Echo(request);
}

void ModelsAreLoadedAndLinesLogged() {
  Services services(Keep);
  fake_server::AddModel("ready", Echo);
  Asker asker(&services);
  asker.Send(ServiceBell::kLog, pytriton::LogMessage{TRITONSERVER_LOG_WARN, 7, "model.py", "all is well"});
  ModelMessage message;
  message.model = "ready";
  asker.Send(ServiceBell::kModel, message);
  CHECK(asker.Take().bell.offset == 1);
  CHECK(Contains(fake_triton::TakeLog(), "all is well"));
  message.order = ModelOrder::kLoad;
  message.config = "{}";
  message.files = {{"1/a", 0, 3}, {"1/b", 3, 1}};
  asker.Send(ServiceBell::kModel, message, "abcd");
  CHECK(asker.Take().reply.message == "ready with config={};file:1/a=abc;file:1/b=d;");
  CheckNothingIsLeft(&asker);
}

void NonsenseEndsTheChannelAlone() {
  Services services(Keep);
  fake_server::AddModel("echo", Echo);
  Asker good(&services);
  const std::vector<std::function<void(Asker*)>> nonsense = {
      [](Asker* asker) { asker->Ring({99, 1, 64, 64}); },
      [](Asker* asker) { asker->Ring({static_cast<int64_t>(ServiceBell::kCall), 1, int64_t{1} << 40, 64}); },
      [](Asker* asker) { asker->Ring({static_cast<int64_t>(ServiceBell::kCall), 1, 64, -1}); },
      [](Asker* asker) { asker->Ring({static_cast<int64_t>(ServiceBell::kOpen), 0, 0, 0}); },
      [](Asker* asker) {
        CallMessage call;
        call.model = "echo";
        call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, 4096, {4096}}});
        asker->Send(ServiceBell::kCall, call);
      },
  };
  for (const auto& say : nonsense) {
    Asker bad(&services);
    say(&bad);
    CHECK(!bad.Hear());
  }
  Asker early(&services, false);
  early.Ring({static_cast<int64_t>(ServiceBell::kCall), 1, 64, 64});
  CHECK(!early.Hear());
  Asker old(&services, false);
  old.Open(pytriton::kProtocolVersion + 1);
  CHECK(!old.opened());
  CHECK(Contains(fake_triton::TakeLog(), "install the same pytriton on both sides"));
  good.Call("echo", "data");
  CHECK(good.Take().data[0] == "data");
  CheckNothingIsLeft(&good);
}

void MutatedMessagesNeverCrash() {
  Services services(Keep);
  fake_server::AddModel("echo", Echo);
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Asker asker(&services);
    CallMessage call;
    call.model = "echo";
    call.parameters = {{"a", pytriton::ParameterType::kString, "text", 0}};
    call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, 4, {4}}});
    MessageWriter writer;
    Encode(call, &writer);
    std::string message(writer.head_size() + 64, 'x');
    writer.CopyTo(message.data());
    for (int i = 0; i < 3; ++i) message[random() % writer.head_size()] = static_cast<char>(random());
    const Block block = asker.arena().Allocate(static_cast<int64_t>(message.size()));
    std::memcpy(block.data, message.data(), message.size());
    const std::array<ServiceBell, 4> kinds = {ServiceBell::kCall, ServiceBell::kCall, ServiceBell::kMetric,
                                              ServiceBell::kLog};
    asker.Ring(
        {static_cast<int64_t>(kinds[random() % kinds.size()]), 1, block.offset, static_cast<int64_t>(message.size())});
    asker.Ring({99, 0, 0, 0});
    while (asker.Hear()) {
    }
  }
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
  fake_triton::TakeLog();
}

// The server answers from threads of its own, in any order, while workers come, cancel and go.
void ManyAskAtOnce() {
  Services services(Keep);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<TRITONSERVER_InferenceRequest*> waiting;
  bool stop = false;
  fake_server::AddModel("echo", [&](TRITONSERVER_InferenceRequest* request) {
    const std::lock_guard<std::mutex> lock(mutex);
    waiting.push_back(request);
    changed.notify_one();
  });
  const auto serve = [&](int seed) {
    std::mt19937_64 random(seed);
    while (true) {
      TRITONSERVER_InferenceRequest* request;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return stop || !waiting.empty(); });
        if (waiting.empty()) return;
        std::swap(waiting[random() % waiting.size()], waiting.back());
        request = waiting.back();
        waiting.pop_back();
      }
      CHECK(request->IsUntouched());
      if (random() % 2 == 0) fake_server::Respond(request, {EchoOf(request)}, false);
      const bool first = random() % 2 == 0;
      const fake_server::Output output = EchoOf(request);
      if (first) fake_server::Release(request);
      if (first) {
        fake_server::End(request);
      } else {
        fake_server::Respond(request, {output}, true);
        fake_server::Release(request);
      }
    }
  };
  std::vector<std::thread> servers;
  for (int i = 0; i < 3; ++i) servers.emplace_back(serve, i);
  const auto ask = [&](int seed) {
    std::mt19937_64 random(100 + seed);
    for (int round = 0; round < 10; ++round) {
      Asker asker(&services);
      std::vector<std::string> sent(1);
      for (int i = 0; i < 20; ++i) {
        sent.push_back(data_path::Noise(static_cast<int64_t>(random() % 5000), &random));
        const int64_t number = asker.Call("echo", sent.back());
        if (random() % 4 == 0) asker.Cancel(number);
      }
      if (round % 3 == 1) continue;  // it goes in the midst of it
      if (round % 3 == 2) asker.Retire();
      if (round % 3 == 2) continue;
      for (int left = 20; left > 0;) {
        const Got got = asker.Take();
        for (const std::string& data : got.data) CHECK(data == sent.at(got.bell.sequence));
        if (got.reply.final) --left;
      }
      CHECK(WaitUntil([&] { return asker.arena().in_use() == 0; }));
    }
  };
  std::vector<std::thread> askers;
  for (int i = 0; i < 3; ++i) askers.emplace_back(ask, i);
  for (std::thread& thread : askers) thread.join();
  CHECK(WaitUntil([] { return fake_server::Requests() == 0; }));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    stop = true;
    changed.notify_all();
  }
  for (std::thread& thread : servers) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const int result = data_path::Run(
      {
          {"calls_come_back", CallsComeBack},
          {"replies_are_the_workers_until_it_releases_them", RepliesAreTheWorkersUntilItReleasesThem},
          {"what_is_asked_reaches_the_server", WhatIsAskedReachesTheServer},
          {"strings_have_their_lengths_first", StringsHaveTheirLengthsFirst},
          {"streams_have_any_number_of_responses", StreamsHaveAnyNumberOfResponses},
          {"errors_reach_the_worker", ErrorsReachTheWorker},
          {"cancelling_reaches_the_server", CancellingReachesTheServer},
          {"cycles_are_refused", CyclesAreRefused},
          {"a_worker_that_hangs_up_has_its_calls_cancelled", AWorkerThatHangsUpHasItsCallsCancelled},
          {"an_instance_that_ends_has_its_calls_cancelled", AnInstanceThatEndsHasItsCallsCancelled},
          {"the_backend_ends_behind_its_calls", TheBackendEndsBehindItsCalls},
          {"a_worker_that_does_not_read_is_heard", AWorkerThatDoesNotReadIsHeard},
          {"metrics_go_with_the_last_that_has_them", MetricsGoWithTheLastThatHasThem},
          {"models_are_loaded_and_lines_logged", ModelsAreLoadedAndLinesLogged},
          {"nonsense_ends_the_channel_alone", NonsenseEndsTheChannelAlone},
          {"mutated_messages_never_crash", MutatedMessagesNeverCrash},
          {"many_ask_at_once", ManyAskAtOnce},
      },
      argc, argv);
  arenas.clear();
  return result;
}
