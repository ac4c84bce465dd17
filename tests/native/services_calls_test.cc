// What workers ask of the server over their service channels, and its replies: `services_calls_test BEHAVIOUR`, or
// `--list`.
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fake_server.h"
#include "fake_triton.h"
#include "service_client.h"

namespace services_test {

namespace {

using data_path::Behaviours;
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
  Asker asker(&services);
  std::mt19937_64 random(1);
  for (int64_t size : {0, 1, 4096, 3'000'000}) {
    const std::string sent = data_path::Noise(size, &random);
    InferenceCallMessage call;
    call.request_id = "an id";
    const int64_t number = asker.Call("echo", sent, call);
    const Got got = asker.Take();
    CHECK(got.notification.sequence == number && got.reply.final && got.reply.response && !got.reply.failed);
    CHECK(got.reply.model == "echo" && got.reply.version == 1 && got.reply.request_id == "an id");
    CHECK(got.reply.parameters.size() == 1 && got.reply.parameters[0].number == 7);
    CHECK(got.data[0] == sent && got.reply.outputs[0].shape == std::vector<int64_t>{size});
  }
  CheckNothingIsLeft(&asker);
}

void RepliesAreTheWorkersUntilItReleasesThem() {
  ServiceThread services(Keep);
  fake_server::AddModel("echo", Echo);
  Asker asker(&services);
  asker.Call("echo", "data");
  const std::optional<Notification> notification = asker.Hear();
  CHECK(ComesTrue([] { return fake_server::Requests() == 0; }));
  CHECK(asker.Has(notification->offset) && asker.Has(asker.Read(*notification).outputs[0].offset));
  CHECK(asker.Take(notification).data[0] == "data");
  CheckNothingIsLeft(&asker);
}

void WhatIsAskedReachesTheServer() {
  ServiceThread services(Keep);
  Held held("held");
  Asker asker(&services);
  InferenceCallMessage call;
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
  Asker asker(&services);
  asker.Call("strings", "");
  CHECK(asker.Take().data[0] == std::string("\3\0\0\0\0\0\0\0\5\0\0\0onethree", 20));
  asker.Call("nonsense", "");
  const Got got = asker.Take();
  CHECK(got.reply.failed && Contains(got.reply.message, "'Y' does not match its shape"));
  CheckNothingIsLeft(&asker);
}

void StreamsHaveAnyNumberOfResponses() {
  ServiceThread services(Keep);
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
  ServiceThread services(Keep);
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
  ServiceThread services(Keep);
  Held held("held");
  Asker asker(&services);
  const int64_t number = asker.Call("held", "data");
  TRITONSERVER_InferenceRequest* request = held.Take();
  asker.Cancel(number + 5);  // which nobody has
  asker.Cancel(number);
  CHECK(ComesTrue([&] { return request->cancelled.load(); }));
  fake_server::Release(request);
  asker.Cancel(number);  // the server may have released it, and still be at it
  fake_server::RespondError(request, TRITONSERVER_ERROR_CANCELLED, "cancelled");
  CHECK(asker.Take().reply.code == TRITONSERVER_ERROR_CANCELLED);
  asker.Cancel(number);
  CheckNothingIsLeft(&asker);
}

void CyclesAreRefused() {
  ServiceThread services(Keep);
  Held held("asker");
  Asker asker(&services);
  asker.channel()->SetCapacity(2);
  InferenceCallMessage call;
  call.batch = 1;
  asker.Call("asker", "data", call);
  TRITONSERVER_InferenceRequest* request = held.Take();
  // Which is served as batch 2.
  asker.channel()->Began(2, pytriton::ParseCallChain(request->parameters.at(pytriton::kCallersParameter)));
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

int64_t Do(Asker* asker, const MetricMessage& message) {
  asker->Send(ServiceNotification::kMetric, message);
  const Got got = asker->Take();
  CHECK(got.notification.kind == static_cast<int64_t>(ServiceNotification::kDone));
  return got.notification.offset;
}

void MetricsGoWithTheLastThatHasThem() {
  ServiceThread services(Keep);
  Held held("held");
  Asker one(&services);
  Asker other(&services);
  for (Asker* asker : {&one, &other}) {
    MetricMessage message;
    message.command = MetricOperation::kFamily;
    message.name = "hits";
    message.number = Do(asker, message);
    message.command = MetricOperation::kMetric;
    message.number = Do(asker, message);
    message.command = MetricOperation::kIncrement;
    message.value = 2;
    Do(asker, message);
  }
  CHECK(fake_server::MetricOf("hits") == 2);
  other.Call("held", "data");  // a call in flight holds the channel
  TRITONSERVER_InferenceRequest* request = held.Take();
  one.HangUp();
  other.Retire();
  CHECK(ComesTrue([] { return std::isnan(fake_server::MetricOf("hits")); }));
  Echo(request);
}

void ModelsAreLoadedAndLinesLogged() {
  ServiceThread services(Keep);
  fake_server::AddModel("ready", Echo);
  Asker asker(&services);
  asker.Send(ServiceNotification::kLog, pytriton::LogMessage{TRITONSERVER_LOG_WARN, 7, "model.py", "all is well"});
  ModelMessage message;
  message.model = "ready";
  asker.Send(ServiceNotification::kModel, message);
  CHECK(asker.Take().notification.offset == 1);
  CHECK(Contains(fake_triton::TakeLog(), "all is well"));
  message.command = ModelOperation::kLoad;
  message.config = "{}";
  message.files = {{"1/a", 0, 3}, {"1/b", 3, 1}};
  asker.Send(ServiceNotification::kModel, message, "abcd");
  CHECK(asker.Take().reply.message == "ready with config={};file:1/a=abc;file:1/b=d;");
  CheckNothingIsLeft(&asker);
}

const Behaviours kBehaviours = {
    {"calls_come_back", CallsComeBack},
    {"replies_are_the_workers_until_it_releases_them", RepliesAreTheWorkersUntilItReleasesThem},
    {"what_is_asked_reaches_the_server", WhatIsAskedReachesTheServer},
    {"strings_have_their_lengths_first", StringsHaveTheirLengthsFirst},
    {"streams_have_any_number_of_responses", StreamsHaveAnyNumberOfResponses},
    {"errors_reach_the_worker", ErrorsReachTheWorker},
    {"cancelling_reaches_the_server", CancellingReachesTheServer},
    {"cycles_are_refused", CyclesAreRefused},
    {"metrics_go_with_the_last_that_has_them", MetricsGoWithTheLastThatHasThem},
    {"models_are_loaded_and_lines_logged", ModelsAreLoadedAndLinesLogged},
};

}  // namespace

}  // namespace services_test

int main(int argc, char** argv) { return services_test::Run(services_test::kBehaviours, argc, argv); }
