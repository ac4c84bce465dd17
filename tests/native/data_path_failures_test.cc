// Requests that cannot be served, and workers in sequential mode that fail, talk nonsense or are gone:
// `data_path_failures_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data_path.h"
#include "fake_metrics.h"

namespace data_path {

namespace {

using fake_worker::DataOf;
using fake_worker::Echo;
using fake_worker::EchoOf;
using fake_worker::Served;
using fake_worker::Whole;
using pytriton::BatchMessage;
using pytriton::ResultMessage;

void BadRequestsFailAlone() {
  std::mt19937_64 random(9);
  constexpr int64_t kHuge = int64_t{1} << 32;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Model model("bad", 2, true, Echo);
  model.Load();
  const auto good = [&] {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3}, &random), Bytes("B", {2, 1}, {"a", "b"})});
  };
  const auto strings = [](std::vector<int64_t> shape, const std::string& data) {
    return TRITONBACKEND_Input("B", TRITONSERVER_TYPE_BYTES, std::move(shape), data);
  };
  const auto numbers = [](std::vector<int64_t> shape, const std::string& data) {
    return TRITONBACKEND_Input("A", TRITONSERVER_TYPE_FP32, std::move(shape), data);
  };
  auto pieces = strings({1, 2}, Serialized({"ab", "cd"}) + "x");
  pieces.Split({2, 5});
  const std::vector<TRITONBACKEND_Input> bad = {
      strings({1, 1}, "abc"),                                      // cut off in a length
      strings({1, 1}, Serialized({"abc"}).substr(0, 6)),           // cut off in an element
      strings({1, 2}, Serialized({"abc"})),                        // too few elements
      strings({1, 1}, Serialized({"abc", "def"})),                 // too many
      strings({1, 1}, std::string("\xff\xff\xff\xff", 4) + "ab"),  // a length beyond everything
      strings({1, 1}, ""),
      strings({kHuge, kHuge}, ""),
      strings({kMax, 4}, Serialized({"abc"})),
      strings({1, -1}, Serialized({"abc"})),
      pieces,
      numbers({1, 3}, "eleven byte"),
      numbers({1, 3}, "thirteen byte"),
      numbers({kHuge, kHuge}, ""),
      numbers({kHuge, kHuge, 0}, ""),
      numbers({1, kMax / 2}, "abcd"),
      numbers({-1, -1}, "abcd"),
      {"A", TRITONSERVER_TYPE_INVALID, {1, 1}, "abcd"},
  };
  for (const TRITONBACKEND_Input& input : bad) {
    auto batch = BatchOf(good(), model.Request({input}), good());
    model.Execute(batch);
    model.CheckEchoed(*batch[0]);
    model.CheckEchoed(*batch[2]);
    CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "model 'bad': the data of input '" + input.name));
    CHECK(Contains(batch[1]->request.error, "does not match its shape and datatype"));
    model.Execute(BatchOf(model.Request({input})));
  }
  auto unknown = BatchOf(good(), model.Request({{"Z", TRITONSERVER_TYPE_UINT8, {1, 1}, "z"}}));
  model.Execute(unknown);
  model.CheckEchoed(*unknown[0]);
  CHECK(unknown[1]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "does not know the tensor 'Z'"));
  CHECK(model.connections() == 1);
}

// A client can write to its shared memory at any time, also between the check of its strings and their copy.
void StringsThatChangeWhileTheyAreReadFailTheirBatch() {
  Model model("changing", 1, true, Echo);
  model.Load();
  const Strings checked = {"much longer than the others", "", "", ""};
  const Strings changes[] = {
      {checked[0] + std::string(12, 'x')},  // it takes the place of the other lengths, so that those are missing
      {checked[0], "", "", std::string("\xff", 1)},
      {"shorter", "", "", ""},
  };
  for (const Strings& later : changes) {
    auto input = Bytes("A", {1, 4}, checked);
    const std::string bytes = Serialized(later).substr(0, input.data().size());
    input.buffers[0].later.assign(bytes.begin(), bytes.end());
    auto batch = BatchOf(model.Request({input}));
    model.Execute(batch);
    CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "a client changes the shared memory of input 'A'"));
    model.CheckServed(BatchOf(model.Request({Bytes("A", {1, 2}, {"a", "b"})})));
  }
  CHECK(model.connections() == 1);
}

void WithoutADriverTensorsOfGpusFail() {
  std::mt19937_64 random(10);
  Model model("gpu", 1, true, Echo);
  model.Load();
  const auto request = [&] { return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}); };
  auto wanted = BatchOf(request(), request());
  wanted[0]->request.output_memory = TRITONSERVER_MEMORY_GPU;
  model.Execute(wanted);
  CHECK(wanted[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "there is no driver for GPUs"));
  model.CheckEchoed(*wanted[1]);
  auto sent = BatchOf(request());
  sent[0]->request.inputs[0].buffers[0].type = TRITONSERVER_MEMORY_GPU;
  model.Execute(sent);
  CHECK(sent[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "there is no driver for GPUs"));
  auto later = BatchOf(request());
  later[0]->request.inputs[0].buffers[0].type = TRITONSERVER_MEMORY_CPU_PINNED;
  model.Execute(later);
  model.CheckEchoed(*later[0]);
}

void RequestsGoBackToTheServer() {
  std::mt19937_64 random(23);
  Model model("back", 1, true, [&](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    result.failures.push_back({1, {pytriton::kReschedule, "", "", ""}});
    return Served{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  batch[1]->request.reschedulable = true;
  model.Execute(batch);
  CHECK(batch[1]->request.rescheduled && !batch[1]->request.answered);
  model.CheckEchoed(*batch[0]);
  model.CheckEchoed(*batch[2]);
  CHECK(model.instance()->succeeded == 2 && model.instance()->failed == 0);
  auto refused = BatchOf(model.Request(&random), model.Request(&random));
  model.Execute(refused);
  CHECK(refused[1]->failed_with(TRITONSERVER_ERROR_UNSUPPORTED, "cannot be rescheduled: no such scheduler"));
}

void FailuresReachTheirRequests() {
  std::mt19937_64 random(11);
  bool whole = false;
  Model model("failing", 1, true, [&](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    result.failures.push_back(
        {whole ? -1 : 1, {TRITONSERVER_ERROR_UNAVAILABLE, "said to the client", "the traceback", "E"}});
    result.failures.push_back({77, {TRITONSERVER_ERROR_INTERNAL, "of no request", "", ""}});
    if (whole) result.columns.clear();
    return Served{Whole(result, whole ? "" : DataOf(batch, data)), {}};
  });
  model.Load();
  const auto request = [&] { return model.Request({Bytes("A", {1, 1}, {Noise(9, &random)})}); };
  auto one = BatchOf(request(), request(), request());
  model.Execute(one);
  model.CheckEchoed(*one[0]);
  CHECK(one[1]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "said to the client"));
  model.CheckEchoed(*one[2]);
  CHECK(fake_triton::TakeLog() == "the traceback\n");
  whole = true;
  auto all = BatchOf(request(), request());
  model.Execute(all);
  for (const auto& sent : all) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "said to the client"));
}

void NonsenseFromTheWorkerFailsTheBatch() {
  std::mt19937_64 random(12);
  constexpr int64_t kHuge = int64_t{1} << 32;
  using Change = std::function<void(ResultMessage*)>;
  const auto in_batch = [](int64_t offset, int64_t size) -> Change {
    return [offset, size](ResultMessage* result) {
      result->columns[0].place = pytriton::Place::kInBatch;
      result->columns[0].tensors[0].offset = offset;
      result->columns[0].tensors[0].size = size;
    };
  };
  const std::vector<Change> lies = {
      [](ResultMessage* result) { result->columns[0].place = static_cast<pytriton::Place>(4); },
      [](ResultMessage* result) { result->columns[0].place = static_cast<pytriton::Place>(-1); },
      [](ResultMessage* result) { result->request_count = 3; },
      [](ResultMessage* result) { result->request_count = -1; },
      [](ResultMessage* result) { result->columns[0].position = 2; },
      [](ResultMessage* result) { result->columns[0].position = -1; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape[0] += 1; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape.clear(); },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape[1] = 2; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape = {2, kHuge, kHuge}; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape = {2, -1, -3}; },
      [](ResultMessage* result) { result->columns[0].tensors[0].offset = -1; },
      [](ResultMessage* result) { result->columns[0].tensors[0].offset = kHuge; },
      [](ResultMessage* result) { result->columns[0].tensors[0].size -= 4; },
      [](ResultMessage* result) { result->columns[0].tensors[0].size = kHuge; },
      [](ResultMessage* result) { result->columns[0].datatype = TRITONSERVER_TYPE_INT8; },
      [](ResultMessage* result) { result->columns[0].datatype = 99; },
      [](ResultMessage* result) { result->columns[1].tensors[0].shape = {2, int64_t{1} << 61}; },
      [](ResultMessage* result) { result->columns[1].tensors[0].size = 7; },
      [](ResultMessage* result) { result->columns[1].tensors[0].size = 8; },  // lengths without their strings
      in_batch(-1, 24),
      in_batch(kHuge, 24),
      in_batch(std::numeric_limits<int64_t>::max(), 24),
      in_batch(64, kHuge),
      in_batch(64, -24),
      in_batch(1 << 12, 24),
  };
  const Change* lie = nullptr;
  pytriton::Notification notification;
  Model model("lying", 2, true, [&](const BatchMessage& batch, const char* data) {
    if (notification.kind != 0) return Served{"x", notification};
    ResultMessage result = EchoOf(batch);
    if (lie != nullptr) (*lie)(&result);
    return Served{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  const auto batch = [&] {
    return BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random), Bytes("B", {1, 1}, {"one"})}),
                   model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random), Bytes("B", {1, 1}, {"two"})}));
  };
  const auto check_failed = [&] {
    auto requests = batch();
    model.Execute(requests);
    for (const auto& sent : requests) CHECK(sent->request.failed && sent->request.outputs.empty());
  };
  for (const Change& each : lies) {
    lie = &each;
    check_failed();
    lie = nullptr;
    model.CheckServed(batch());
  }
  const int64_t kind = static_cast<int64_t>(pytriton::NotificationKind::kResult);
  const std::vector<pytriton::Notification> notifications = {
      {kind, 99999, 64, 64},
      {99, 1, 64, 64},
      {kind, -1, std::numeric_limits<int64_t>::max(), 64},
      {kind, -1, 64, std::numeric_limits<int64_t>::max()},
      {kind, -1, 0, 64},
      {kind, -1, 68, 64},  // not aligned to a word
      {kind, -1, 64, -1},
      {kind, -1, 64, 15},
  };
  for (const pytriton::Notification& each : notifications) {
    // Right after a new connection, so that the sequence may be right.
    model.Unbind();
    model.Bind();
    model.Execute(batch());
    notification = each;
    if (notification.sequence == -1) notification.sequence = 1;
    check_failed();
    notification = {};
    model.CheckServed(batch());
  }
}

void ADeadWorkerIsReplaced() {
  std::mt19937_64 random(14);
  bool dying = true;
  Model model("mortal", 1, true, [&](const BatchMessage& batch, const char* data) {
    if (std::exchange(dying, false)) return Served{"", {}, true};
    return Echo(batch, data);
  });
  model.Load();
  const auto request = [&] { return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}); };
  auto lost = BatchOf(request(), request());
  model.Execute(lost);
  for (const auto& sent : lost) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal': "));
  model.CheckServed(BatchOf(request(), request()));
  CHECK(model.connections() == 2);
  model.Unbind();
  for (int i = 0; i < 3; ++i) {
    auto orphans = BatchOf(request(), request());
    model.Execute(orphans);
    for (const auto& sent : orphans) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal'"));
    if (i > 0) CHECK(Contains(orphans[0]->request.error, "has no worker: it is no longer bound"));
  }
  model.Bind();
  model.CheckServed(BatchOf(request()));
}

void AProcessThatIsBeingStartedAgainIsWaitedFor() {
  std::mt19937_64 random(17);
  Model model("restarted", 1, true, Echo);
  model.Bind(4);
  model.Load();
  const auto restart_counter = [] { return fake_metrics::ValueOf("pytriton_worker_restarts_total"); };
  CHECK(restart_counter() == 0);  // the instance has seen none of them
  model.EndProcess("its process is being restarted");
  auto waiting = BatchOf(model.Request(&random));
  std::thread execute([&] { model.Execute(waiting); });
  CHECK(!fake_triton::WaitUntil([&] { return Model::IsDone(waiting); }, std::chrono::milliseconds(300)));
  model.Bind(6);
  execute.join();
  Model::CheckEchoed(*waiting[0]);
  CHECK(restart_counter() == 2);
  model.Unload();
  CHECK(std::isnan(fake_metrics::ValueOf("pytriton_worker_restarts_total")));
}

void AModelIsLoadedWhileItsProcessIsBeingStartedAgain() {
  std::mt19937_64 random(19);
  Model model("loaded_early", 1, true, Echo);
  model.Bind();
  model.EndProcess("its process is being restarted");
  model.Load();
  auto waiting = BatchOf(model.Request(&random));
  std::thread execute([&] { model.Execute(waiting); });
  CHECK(!fake_triton::WaitUntil([&] { return Model::IsDone(waiting); }, std::chrono::milliseconds(300)));
  model.Bind();
  execute.join();
  Model::CheckEchoed(*waiting[0]);
}

void NobodyWaitsForAProcessWhoseRequestsAreCancelled() {
  std::mt19937_64 random(18);
  Model model("patient", 1, true, Echo);
  model.Load();
  model.EndProcess("its process is being restarted");
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  batch[0]->request.timeout_us = 1;
  std::thread execute([&] { model.Execute(batch); });
  CHECK(!fake_triton::WaitUntil([&] { return Model::IsDone(batch); }, std::chrono::milliseconds(300)));
  batch[1]->request.cancelled = true;
  execute.join();
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'patient': the request's timeout has passed"));
  CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_CANCELLED, "model 'patient': the request was cancelled"));
}

void LoadingFailsWithoutAWorker() {
  Model model("unbound", 1, true, Echo);
  model.Unbind();
  TRITONBACKEND_Backend backend;
  model.instance()->model->backend = &backend;
  CHECK(TRITONBACKEND_Initialize(&backend) == nullptr);
  CHECK(TRITONBACKEND_ModelInitialize(model.instance()->model) == nullptr);
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceInitialize(model.instance());
  CHECK(error != nullptr && Contains(error->message, "no longer bound"));
  CHECK(model.instance()->state == nullptr);
  TRITONSERVER_ErrorDelete(error);
  TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelFinalize(model.instance()->model));
  model.instance()->model->state = nullptr;
  TRITONSERVER_ErrorDelete(TRITONBACKEND_Finalize(&backend));
}

const Behaviors kBehaviors = {
    {"bad_requests_fail_alone", BadRequestsFailAlone},
    {"strings_that_change_while_they_are_read_fail_their_batch", StringsThatChangeWhileTheyAreReadFailTheirBatch},
    {"without_a_driver_tensors_of_gpus_fail", WithoutADriverTensorsOfGpusFail},
    {"requests_go_back_to_the_server", RequestsGoBackToTheServer},
    {"failures_reach_their_requests", FailuresReachTheirRequests},
    {"nonsense_from_the_worker_fails_the_batch", NonsenseFromTheWorkerFailsTheBatch},
    {"a_dead_worker_is_replaced", ADeadWorkerIsReplaced},
    {"a_process_that_is_being_started_again_is_waited_for", AProcessThatIsBeingStartedAgainIsWaitedFor},
    {"a_model_is_loaded_while_its_process_is_being_started_again", AModelIsLoadedWhileItsProcessIsBeingStartedAgain},
    {"nobody_waits_for_a_process_whose_requests_are_cancelled", NobodyWaitsForAProcessWhoseRequestsAreCancelled},
    {"loading_fails_without_a_worker", LoadingFailsWithoutAWorker},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
