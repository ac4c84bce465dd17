// Workers, instances and backends that go in the midst of calls, and workers that do not read or send nonsense:
// `services_failures_test BEHAVIOR`, or `--list`.
#include <pthread.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fake_server.h"
#include "fake_triton.h"
#include "service_client.h"

namespace services_test {

namespace {

using data_path::Behaviors;
using data_path::ComesTrue;
using data_path::Contains;
using pytriton::InferenceCallMessage;
using pytriton::ServiceNotification;
using pytriton::ServiceThread;

void AWorkerThatHangsUpHasItsCallsCancelled() {
  ServiceThread services(Keep);
  Held held("held");
  TRITONSERVER_InferenceRequest* request = nullptr;
  {
    ServiceClient client(&services);
    client.Call("held", "data");
    request = held.Take();
    client.HangUp();
    CHECK(ComesTrue([&] { return request->cancelled.load(); }));
  }
  CHECK(request->IsUntouched());
  Echo(request);
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
}

void AnInstanceThatEndsHasItsCallsCancelled() {
  ServiceThread services(Keep);
  Held held("held");
  ServiceClient client(&services);
  client.Call("held", "data");
  TRITONSERVER_InferenceRequest* request = held.Take();
  client.Retire();
  CHECK(request->cancelled);
  CHECK(!client.Hear());
  Echo(request);
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
}

void TheBackendEndsBehindItsCalls() {
  Held held("held");
  std::thread late;
  {
    ServiceThread services(Keep);
    ServiceClient client(&services);
    client.Call("held", "data");
    TRITONSERVER_InferenceRequest* request = held.Take();
    late = std::thread([request] {
      CHECK(ComesTrue([&] { return request->cancelled.load(); }));
      Echo(request);
    });
    client.HangUp();
  }
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  late.join();
}

void AWorkerThatDoesNotReadIsServed() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  ServiceClient client(&services);
  constexpr int kCalls = 3000;
  for (int i = 0; i < kCalls; ++i) client.Call("echo", std::to_string(i));
  CHECK(ComesTrue([&] { return client.arena().in_use() == 0; }));
  for (int i = 0; i < kCalls; ++i) CHECK(client.Take().data[0] == std::to_string(i));
  CheckNothingIsLeft(&client);
}

void NonsenseEndsTheChannelAlone() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  ServiceClient good(&services);
  const std::vector<std::function<void(ServiceClient*)>> nonsense = {
      [](ServiceClient* client) { client->Notify({99, 1, 64, 64}); },
      [](ServiceClient* client) {
        client->Notify({static_cast<int64_t>(ServiceNotification::kInfer), 1, int64_t{1} << 40, 64});
      },
      [](ServiceClient* client) { client->Notify({static_cast<int64_t>(ServiceNotification::kInfer), 1, 64, -1}); },
      [](ServiceClient* client) { client->Notify({static_cast<int64_t>(ServiceNotification::kOpen), 0, 0, 0}); },
      [](ServiceClient* client) {
        InferenceCallMessage call;
        call.model = "echo";
        call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8, {0, 4096, {4096}}});
        client->Send(ServiceNotification::kInfer, call);
      },
  };
  for (const auto& say : nonsense) {
    ServiceClient bad(&services);
    say(&bad);
    CHECK(!bad.Hear());
  }
  ServiceClient early(&services, false);
  early.Notify({static_cast<int64_t>(ServiceNotification::kInfer), 1, 64, 64});
  CHECK(!early.Hear());
  ServiceClient old(&services, false);
  old.Open(pytriton::kProtocolVersion + 1);
  CHECK(!old.opened());
  CHECK(Contains(fake_triton::TakeLog(), "install the same pytriton on both sides"));
  good.Call("echo", "data");
  CHECK(good.Take().data[0] == "data");
  CheckNothingIsLeft(&good);
}

void ATracedCallThatIsRefusedDoesNotKeepItsChannel() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  std::weak_ptr<pytriton::ServiceChannel> channel;
  {
    ServiceClient client(&services);
    channel = client.channel()->weak_from_this();
    InferenceCallMessage call;
    call.model = "echo";  // which has an input
    call.trace_context = R"({"traceparent": "00-1-2-01"})";
    client.Send(ServiceNotification::kInfer, call);
    CHECK(Contains(client.Take().reply.message, "expected 1 inputs"));
    client.HangUp();
  }
  CHECK(ComesTrue([&] { return channel.expired(); }));
}

// Lets the system create no thread while the object exists: none gets a stack of this size.
class NoThreads {
 public:
  NoThreads() {
    CHECK(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge;
    CHECK(pthread_getattr_default_np(&huge) == 0 && pthread_attr_setstacksize(&huge, size_t{1} << 47) == 0);
    CHECK(pthread_setattr_default_np(&huge) == 0);
  }
  ~NoThreads() { CHECK(pthread_setattr_default_np(&before_) == 0); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

void AModelThatGetsNoThreadFailsThatCallAlone() {
  ServiceThread services(Keep);
  fake_server::AddModel("ready", Echo);
  ServiceClient client(&services);
  pytriton::ModelMessage message;
  message.model = "ready";
  {
    const NoThreads none;
    client.Send(ServiceNotification::kModel, message);
    CHECK(Contains(client.Take().reply.message, "cannot start another thread"));
  }
  client.Send(ServiceNotification::kModel, message);
  CHECK(client.Take().notification.offset == 1);
  CheckNothingIsLeft(&client);
}

const Behaviors kBehaviors = {
    {"a_worker_that_hangs_up_has_its_calls_cancelled", AWorkerThatHangsUpHasItsCallsCancelled},
    {"an_instance_that_ends_has_its_calls_cancelled", AnInstanceThatEndsHasItsCallsCancelled},
    {"the_backend_ends_behind_its_calls", TheBackendEndsBehindItsCalls},
    {"a_worker_that_does_not_read_is_served", AWorkerThatDoesNotReadIsServed},
    {"nonsense_ends_the_channel_alone", NonsenseEndsTheChannelAlone},
    {"a_traced_call_that_is_refused_does_not_keep_its_channel", ATracedCallThatIsRefusedDoesNotKeepItsChannel},
    {"a_model_that_gets_no_thread_fails_that_call_alone", AModelThatGetsNoThreadFailsThatCallAlone},
};

}  // namespace

}  // namespace services_test

int main(int argc, char** argv) { return services_test::Run(services_test::kBehaviors, argc, argv); }
