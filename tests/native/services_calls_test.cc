// What workers ask of the server over their service channels, and its replies: `services_calls_test BEHAVIOR`, or
// `--list`.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fake_metrics.h"
#include "fake_server.h"
#include "fake_triton.h"
#include "service_client.h"
#include "triton/reserved_parameters.h"

namespace services_test {

namespace {

using data_path::Behaviors;
using data_path::ComesTrue;
using data_path::Contains;
using pytriton::InferenceCallMessage;
using pytriton::MetricMessage;
using pytriton::MetricOperation;
using pytriton::ModelMessage;
using pytriton::ModelOperation;
using pytriton::Notification;
using pytriton::ServiceNotification;
using pytriton::ServiceThread;

void CallsComeBack() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  ServiceClient client(&services);
  std::mt19937_64 random(1);
  for (int64_t size : {0, 1, 4096, 3'000'000}) {
    const std::string sent = data_path::Noise(size, &random);
    InferenceCallMessage call;
    call.request_id = "an id";
    const int64_t number = client.Call("echo", sent, call);
    const Got got = client.Take();
    CHECK(got.notification.sequence == number && got.reply.final && got.reply.response && !got.reply.failed);
    CHECK(got.reply.model == "echo" && got.reply.version == 1 && got.reply.request_id == "an id");
    CHECK(got.reply.parameters.size() == 1 && got.reply.parameters[0].number == 7);
    CHECK(got.data[0] == sent && got.reply.outputs[0].shape == std::vector<int64_t>{size});
  }
  CheckNothingIsLeft(&client);
}

void RepliesAreTheWorkersUntilItReleasesThem() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  ServiceClient client(&services);
  client.Call("echo", "data");
  const std::optional<Notification> notification = client.Hear();
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  CHECK(client.Has(notification->offset) && client.Has(client.Read(*notification).outputs[0].offset));
  CHECK(client.Take(notification).data[0] == "data");
  CheckNothingIsLeft(&client);
}

void WhatIsAskedReachesTheServer() {
  ServiceThread services(Keep);
  Held held("held");
  ServiceClient client(&services);
  InferenceCallMessage call;
  call.flags = 3;
  call.correlation_text = "seven";
  call.all_outputs = false;
  call.outputs = {"Z"};
  call.parameters = {{"a", pytriton::ParameterType::kString, "text", 0}, {"b", pytriton::ParameterType::kBool, "", 1}};
  call.batch = 0;
  client.Call("held", "data", call);
  TRITONSERVER_InferenceRequest* request = held.Take();
  CHECK(request->flags == 3 && request->correlation == "seven" && request->outputs == data_path::Strings{"Z"});
  CHECK(request->parameters.at("a") == "text" && request->parameters.at("b") == "true");
  CHECK(Contains(request->parameters.at(pytriton::kCallersParameter), " client\n"));
  CHECK(request->inputs.at("X").data == "data");
  fake_server::End(request);
  CHECK(request->IsUntouched());
  fake_server::Release(request);
  CHECK(client.Take().reply.final);
  CheckNothingIsLeft(&client);
}

// Of a few calls, that is: the service thread, which looks at its sockets now and then, may receive some.
template <typename Serve>
void CheckReceivedHere(const Serve& serve) {
  ServiceThread services(Keep);
  const std::thread::id here = std::this_thread::get_id();
  std::atomic<bool> received{false};
  fake_server::AddModel("echo", [&](TRITONSERVER_InferenceRequest* request) {
    if (std::this_thread::get_id() == here) received = true;
    Echo(request);
  });
  ServiceClient client(&services);
  CHECK(ComesTrue([&] {
    serve(&client);
    CHECK(client.Take().data[0] == "data");
    return received.load();
  }));
  CheckNothingIsLeft(&client);
}

void AnInstanceThatPollsReceivesCalls() {
  CheckReceivedHere([](ServiceClient* client) {
    CHECK(!client->ShowToPolling());
    client->channel()->Poll();
    client->Call("echo", "data");
    CHECK(client->ShowToPolling());
    client->channel()->Poll();
    client->channel()->EndPolling();
  });
}

void AnInstanceThatEndsPollingLeavesNoCall() {
  CheckReceivedHere([](ServiceClient* client) {
    client->channel()->Poll();
    client->Call("echo", "data");
    client->channel()->EndPolling();
    CHECK(!client->ShowToPolling());
  });
}

void StringsHaveTheirLengthsFirst() {
  ServiceThread services(Keep);
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
  ServiceClient client(&services);
  client.Call("strings", "");
  CHECK(client.Take().data[0] == std::string("\3\0\0\0\0\0\0\0\5\0\0\0onethree", 20));
  client.Call("nonsense", "");
  const Got got = client.Take();
  CHECK(got.reply.failed && Contains(got.reply.message, "'Y' does not match its shape"));
  CheckNothingIsLeft(&client);
}

void StreamsHaveAnyNumberOfResponses() {
  ServiceThread services(Keep);
  fake_server::AddModel("stream", [](TRITONSERVER_InferenceRequest* request) {
    for (int i = 0; i < 3; ++i) fake_server::Respond(request, {EchoOf(request)}, false);
    fake_server::Release(request);  // which is allowed: a factory may go on
    fake_server::End(request);
  });
  ServiceClient client(&services);
  client.Call("stream", "data");
  for (int i = 0; i < 3; ++i) {
    const Got got = client.Take();
    CHECK(!got.reply.final && got.data[0] == "data");
  }
  const Got end = client.Take();
  CHECK(end.reply.final && !end.reply.response && !end.reply.failed);
  CheckNothingIsLeft(&client);
}

void ErrorsReachTheWorker() {
  ServiceThread services(Keep);
  fake_server::AddModel("fails", [](TRITONSERVER_InferenceRequest* request) {
    fake_server::RespondError(request, TRITONSERVER_ERROR_INVALID_ARG, "no good");
    fake_server::Release(request);
  });
  fake_server::AddModel("absent", nullptr);
  ServiceClient client(&services);
  client.Call("nobody", "data");
  const Got unknown = client.Take();
  CHECK(unknown.reply.failed && unknown.reply.code == TRITONSERVER_ERROR_NOT_FOUND && unknown.reply.final);
  client.Call("absent", "data");
  const Got refused = client.Take();
  CHECK(refused.reply.failed && refused.reply.code == TRITONSERVER_ERROR_UNAVAILABLE && refused.reply.final);
  client.Call("fails", "data");
  const Got failed = client.Take();
  CHECK(failed.reply.failed && failed.reply.code == TRITONSERVER_ERROR_INVALID_ARG &&
        failed.reply.message == "no good");
  CheckNothingIsLeft(&client);
}

void WithoutADriverTensorsOfGpusFailTheirCall() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  ServiceClient client(&services);
  InferenceCallMessage call;
  call.model = "echo";
  call.inputs.push_back({"X", TRITONSERVER_TYPE_UINT8 | pytriton::kOnDevice, {0, 4, {4}}});
  for (int i = 0; i < 3; ++i) {
    client.Send(ServiceNotification::kInfer, call, std::string(sizeof(pytriton::DeviceLocation), 'x'));
    const Got got = client.Take();
    CHECK(got.reply.failed && got.reply.final && Contains(got.reply.message, "there is no driver for GPUs"));
  }
  client.Call("echo", "data");
  CHECK(client.Take().data[0] == "data");
  CheckNothingIsLeft(&client);
}

void CancellingReachesTheServer() {
  ServiceThread services(Keep);
  Held held("held");
  ServiceClient client(&services);
  const int64_t number = client.Call("held", "data");
  TRITONSERVER_InferenceRequest* request = held.Take();
  client.Cancel(number + 5);  // which nobody has
  client.Cancel(number);
  CHECK(ComesTrue([&] { return request->cancelled.load(); }));
  fake_server::Release(request);
  client.Cancel(number);  // the server may have released it, and still be at it
  fake_server::RespondError(request, TRITONSERVER_ERROR_CANCELLED, "cancelled");
  CHECK(client.Take().reply.code == TRITONSERVER_ERROR_CANCELLED);
  client.Cancel(number);
  CheckNothingIsLeft(&client);
}

void CyclesAreRefused() {
  ServiceThread services(Keep);
  Held held("client");
  ServiceClient client(&services);
  client.channel()->SetCapacity(2);
  InferenceCallMessage call;
  call.batch = 1;
  client.Call("client", "data", call);
  TRITONSERVER_InferenceRequest* request = held.Take();
  // Which is served as batch 2.
  client.channel()->BeginCallChain(2, pytriton::ParseCallChain(request->parameters.at(pytriton::kCallersParameter)));
  call.batch = 2;
  client.Call("client", "data", call);
  const Got got = client.Take();
  CHECK(got.reply.failed && Contains(got.reply.message, "'client' calls 'client' calls 'client'"));
  client.channel()->EndCallChain(2);
  client.Call("client", "data", call);
  Echo(held.Take());
  Echo(request);
  client.Take();
  client.Take();
  CheckNothingIsLeft(&client);
}

int64_t Do(ServiceClient* client, const MetricMessage& message) {
  client->Send(ServiceNotification::kMetric, message);
  const Got got = client->Take();
  CHECK(got.notification.kind == static_cast<int64_t>(ServiceNotification::kDone));
  return got.notification.offset;
}

void MetricsGoWithTheLastThatHasThem() {
  ServiceThread services(Keep);
  Held held("held");
  ServiceClient one(&services);
  ServiceClient other(&services);
  for (ServiceClient* client : {&one, &other}) {
    MetricMessage message;
    message.command = MetricOperation::kFamily;
    message.name = "hits";
    message.number = Do(client, message);
    message.command = MetricOperation::kMetric;
    message.number = Do(client, message);
    message.command = MetricOperation::kIncrement;
    message.value = 2;
    Do(client, message);
  }
  CHECK(fake_metrics::ValueOf("hits") == 2);
  other.Call("held", "data");  // a call in flight holds the channel
  TRITONSERVER_InferenceRequest* request = held.Take();
  one.HangUp();
  other.Retire();
  CHECK(ComesTrue([] { return std::isnan(fake_metrics::ValueOf("hits")); }));
  Echo(request);
}

void ModelsAreLoadedAndLinesLogged() {
  ServiceThread services(Keep);
  fake_server::AddModel("ready", Echo);
  ServiceClient client(&services);
  client.Send(ServiceNotification::kLog, pytriton::LogMessage{TRITONSERVER_LOG_WARN, 7, "model.py", "all is well"});
  ModelMessage message;
  message.model = "ready";
  client.Send(ServiceNotification::kModel, message);
  CHECK(client.Take().notification.offset == 1);
  CHECK(Contains(fake_triton::TakeLog(), "all is well"));
  message.command = ModelOperation::kLoad;
  message.config = "{}";
  message.files = {{"1/a", 0, 3}, {"1/b", 3, 1}};
  client.Send(ServiceNotification::kModel, message, "abcd");
  CHECK(client.Take().reply.message == "ready with config={};file:1/a=abc;file:1/b=d;");
  CheckNothingIsLeft(&client);
}

void AModelThatIsNotThereIsNotReady() {
  ServiceThread services(Keep);
  ServiceClient client(&services);
  ModelMessage message;
  message.model = "missing";
  client.Send(ServiceNotification::kModel, message);
  const Got got = client.Take();
  CHECK(got.notification.offset == 0 && got.reply.message.empty());
  message.model = "broken";
  client.Send(ServiceNotification::kModel, message);
  CHECK(Contains(client.Take().reply.message, "it is broken"));
  CheckNothingIsLeft(&client);
}

void ATracedCallReportsItsTimes() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  ServiceClient client(&services);
  InferenceCallMessage call;
  call.trace_context = R"({"traceparent": "00-1-2-01"})";
  const int64_t number = client.Call("echo", "data", call);
  std::vector<std::pair<int64_t, int64_t>> activities;
  std::vector<Got> replies;
  while (activities.size() < 8 || replies.empty()) {
    const std::optional<Notification> notification = client.Hear();
    CHECK(notification && notification->sequence == number);
    if (notification->kind == static_cast<int64_t>(ServiceNotification::kActivity)) {
      activities.emplace_back(notification->offset, notification->size);
    } else {
      replies.push_back(client.Take(notification));
    }
  }
  for (int64_t i = 0; i < 7; ++i) CHECK(activities[i] == std::make_pair(i, 100 + i));
  CHECK(activities[7].first == pytriton::kReleased && replies[0].data[0] == "data");
  CheckNothingIsLeft(&client);
}

const Behaviors kBehaviors = {
    {"calls_come_back", CallsComeBack},
    {"replies_are_the_workers_until_it_releases_them", RepliesAreTheWorkersUntilItReleasesThem},
    {"what_is_asked_reaches_the_server", WhatIsAskedReachesTheServer},
    {"an_instance_that_polls_receives_calls", AnInstanceThatPollsReceivesCalls},
    {"an_instance_that_ends_polling_leaves_no_call", AnInstanceThatEndsPollingLeavesNoCall},
    {"strings_have_their_lengths_first", StringsHaveTheirLengthsFirst},
    {"streams_have_any_number_of_responses", StreamsHaveAnyNumberOfResponses},
    {"errors_reach_the_worker", ErrorsReachTheWorker},
    {"without_a_driver_tensors_of_gpus_fail_their_call", WithoutADriverTensorsOfGpusFailTheirCall},
    {"cancelling_reaches_the_server", CancellingReachesTheServer},
    {"cycles_are_refused", CyclesAreRefused},
    {"metrics_go_with_the_last_that_has_them", MetricsGoWithTheLastThatHasThem},
    {"a_model_that_is_not_there_is_not_ready", AModelThatIsNotThereIsNotReady},
    {"a_traced_call_reports_its_times", ATracedCallReportsItsTimes},
    {"models_are_loaded_and_lines_logged", ModelsAreLoadedAndLinesLogged},
};

}  // namespace

}  // namespace services_test

int main(int argc, char** argv) { return services_test::Run(services_test::kBehaviors, argc, argv); }
