// Workers that ask many things at once, or malformed ones: `services_stress_test BEHAVIOR`, or `--list`.
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_server.h"
#include "fake_triton.h"
#include "service_client.h"

namespace services_test {

namespace {

using data_path::Behaviors;
using data_path::ComesTrue;
using pytriton::Block;
using pytriton::InferenceCallMessage;
using pytriton::MessageWriter;
using pytriton::ServiceNotification;
using pytriton::ServiceThread;

void MutatedMessagesNeverCrash() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    ServiceClient client(&services);
    InferenceCallMessage call;
    call.model = "echo";
    call.parameters = {{"a", pytriton::ParameterType::kString, "text", 0}};
    call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, 4, {4}}});
    MessageWriter writer;
    Encode(call, &writer);
    std::string message(writer.head_size() + 64, 'x');
    writer.CopyTo(message.data());
    for (int i = 0; i < 3; ++i) message[random() % writer.head_size()] = static_cast<char>(random());
    const Block block = client.arena().Allocate(static_cast<int64_t>(message.size()));
    std::memcpy(block.data, message.data(), message.size());
    const std::array<ServiceNotification, 4> kinds = {ServiceNotification::kInfer, ServiceNotification::kInfer,
                                                      ServiceNotification::kMetric, ServiceNotification::kLog};
    client.Notify(
        {static_cast<int64_t>(kinds[random() % kinds.size()]), 1, block.offset, static_cast<int64_t>(message.size())});
    client.Notify({99, 0, 0, 0});
    while (client.Hear()) {
    }
  }
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  fake_triton::TakeLog();
}

// An instance's thread that polls a channel again and again.
class PollingInstance {
 public:
  explicit PollingInstance(pytriton::ServiceChannel* channel) {
    if (channel == nullptr) return;
    thread_ = std::thread([this, channel] {
      while (!stop_) {
        for (int i = 0; i < 20; ++i) channel->Poll();
        channel->EndPolling();
      }
    });
  }
  ~PollingInstance() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  PollingInstance(const PollingInstance&) = delete;
  PollingInstance& operator=(const PollingInstance&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// The server responds from threads of its own, in any order, while workers come, cancel and go.
void ManyAsk(bool instances_poll) {
  ServiceThread services(Keep);
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
      ServiceClient client(&services);
      const PollingInstance instance(instances_poll ? client.channel() : nullptr);
      std::vector<std::string> sent(1);
      for (int i = 0; i < 20; ++i) {
        sent.push_back(data_path::Noise(static_cast<int64_t>(random() % 5000), &random));
        const int64_t number = client.Call("echo", sent.back());
        client.ShowToPolling();
        if (random() % 4 == 0) client.Cancel(number);
      }
      if (round % 3 == 1) continue;  // it goes in the midst of it
      if (round % 3 == 2 && !instances_poll) client.Retire();
      if (round % 3 == 2) continue;
      for (int left = 20; left > 0;) {
        const Got got = client.Take();
        for (const std::string& data : got.data) CHECK(data == sent.at(got.notification.sequence));
        if (got.reply.final) --left;
      }
      CHECK(ComesTrue([&] { return client.arena().in_use() == 0; }));
    }
  };
  std::vector<std::thread> askers;
  for (int i = 0; i < 3; ++i) askers.emplace_back(ask, i);
  for (std::thread& thread : askers) thread.join();
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    stop = true;
    changed.notify_all();
  }
  for (std::thread& thread : servers) thread.join();
}

void ManyAskAtOnce() { ManyAsk(false); }

void ManyAskInstancesThatPoll() { ManyAsk(true); }

const Behaviors kBehaviors = {
    {"mutated_messages_never_crash", MutatedMessagesNeverCrash},
    {"many_ask_at_once", ManyAskAtOnce},
    {"many_ask_instances_that_poll", ManyAskInstancesThatPoll},
};

}  // namespace

}  // namespace services_test

int main(int argc, char** argv) { return services_test::Run(services_test::kBehaviors, argc, argv); }
