// Batches at workers that take many at a time, and the requests of clients that are gone: `pipeline_test BEHAVIOUR`, or
// `--list`. Its sockets go to the current folder.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data_path.h"

namespace data_path {

namespace {

using fake_triton::WaitUntil;
using fake_worker::Desk;
using fake_worker::Reply;
using fake_worker::Taken;
using pytriton::Answer;

constexpr int kSoonMs = 20000;
constexpr int kNothingMs = 100;  // how long nothing is to happen

// The next batch, which comes soon.
Taken Next(Desk* desk) {
  std::optional<Taken> taken = desk->Take(kSoonMs);
  CHECK(taken);
  return *taken;
}

void EchoAll(Desk* desk, const Taken& taken) {
  Reply reply;
  for (int64_t i = 0; i < taken.batch.request_count; ++i) reply.Echo(taken, i);
  desk->Release(taken);
  CHECK(desk->Send(reply));
}

// A batch that is served from beginning to end: what the worker said before it was heard then.
void CheckServedNow(Model* model, std::mt19937_64* random) {
  auto batch = BatchOf(model->Request(random));
  model->Launch(batch);
  EchoAll(&model->desk(), Next(&model->desk()));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0]);
}

bool ComesTrue(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSoonMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void AnswersComeInAnyOrder() {
  std::mt19937_64 random(1);
  Model model("order", 1, true, {9});
  model.Load();
  std::vector<Requests> batches;
  std::vector<Taken> taken;
  for (int i = 0; i < 8; ++i) {
    batches.push_back(BatchOf(model.Request(&random),
                              model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, i}, &random)}),
                              model.Request(&random)));
    model.Launch(batches.back());
    taken.push_back(Next(&model.desk()));
  }
  for (size_t request : {2, 0, 1}) {
    Reply reply;  // the last batch first, one request of each
    for (auto each = taken.rbegin(); each != taken.rend(); ++each) reply.Echo(*each, request);
    CHECK(model.desk().Send(reply));
    CHECK(WaitUntil([&] {
      return std::all_of(batches.begin(), batches.end(), [&](const auto& b) { return b[request]->request.released; });
    }));
  }
  for (const Requests& batch : batches) {
    for (const auto& sent : batch) Model::CheckEchoed(*sent);
  }
  CHECK(model.connections() == 1);
}

void EveryInputComesBack() {
  std::mt19937_64 random(2);
  int served = 0;
  Model model("inputs", 3, true, {4, true});
  model.Load();
  for (int i = 0; i < 100; ++i) {
    Requests batch;
    std::vector<bool> good;
    for (int n = 0; n < 4; ++n) {
      auto [sent, is_good] = RandomRequest(model, &random);
      batch.push_back(std::move(sent));
      good.push_back(is_good);
    }
    model.Launch(batch);
    if (std::find(good.begin(), good.end(), true) == good.end()) continue;
    EchoAll(&model.desk(), Next(&model.desk()));
    Model::Wait(batch);
    for (size_t n = 0; n < batch.size(); ++n) {
      if (good[n]) Model::CheckEchoed(*batch[n]);
      CHECK(good[n] || batch[n]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "does not match its shape"));
      served += good[n] ? 1 : 0;
    }
  }
  CHECK(served > 200);
}

void ModelsWithoutBatchesAreServed() {
  std::mt19937_64 random(3);
  Model model("single", 2, false, {2});
  model.Load();
  auto batch =
      BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3}, &random), Bytes("B", {1}, {"scalar"})}));
  model.Launch(batch);
  EchoAll(&model.desk(), Next(&model.desk()));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0]);
}

void ABatchWaitsForRoom() {
  std::mt19937_64 random(4);
  Model model("room", 1, true, {2});
  model.Load();
  Desk& desk = model.desk();
  auto first = BatchOf(model.Request(&random), model.Request(&random));
  auto second = BatchOf(model.Request(&random));
  auto third = BatchOf(model.Request(&random));
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests* batch : {&first, &second, &third}) {
      model.Launch(*batch);
      ++launched;
    }
  });
  const Taken one = Next(&desk);
  const Taken two = Next(&desk);
  CHECK(WaitUntil([&] { return launched == 1; }));
  CHECK(desk.Send(Reply().Echo(one, 1)));  // the batch is not through with that
  CHECK(!desk.Take(kNothingMs));
  CHECK(launched == 1);  // Triton thinks of the instance as busy, and gives the third batch to another if there is one
  CHECK(desk.Send(Reply().Echo(one, 0)));
  const Taken three = Next(&desk);
  CHECK(launched == 2);
  CHECK(desk.Send(Reply().Echo(two, 0).Echo(three, 0)));
  launching.join();
  for (const Requests* batch : {&first, &second, &third}) {
    Model::Wait(*batch);
    for (const auto& sent : *batch) Model::CheckEchoed(*sent);
  }
}

void StreamsHaveAnyNumberOfResponses() {
  std::mt19937_64 random(5);
  Model model("streams", 1, true, {4, true});
  model.Load();
  Desk& desk = model.desk();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random), model.Request(&random));
  model.Launch(batch);
  const Taken taken = Next(&desk);
  CHECK(desk.Send(Reply().End(taken, 0).Echo(taken, 1)));  // nothing, and one that is the last
  CHECK(desk.Send(Reply().Echo(taken, 2, false)));
  CHECK(WaitUntil([&] { return batch[2]->request.responses.size() == 1; }));
  CHECK(WaitUntil([&] { return batch[0]->request.released && batch[1]->request.released; }));
  CHECK(WaitUntil([&] { return !batch[2]->request.answered; }));
  constexpr int kMany = 300;
  for (int i = 0; i < kMany; ++i) CHECK(desk.Send(Reply().Echo(taken, 3, false).Echo(taken, 3, false)));
  CHECK(desk.Send(Reply().Echo(taken, 3).End(taken, 2)));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0], 0);
  Model::CheckEchoed(*batch[1], 1);
  Model::CheckEchoed(*batch[2], 1);
  Model::CheckEchoed(*batch[3], 2 * kMany + 1);
}

void OnlyRequestedOutputsAreSent() {
  std::mt19937_64 random(6);
  Model model("outputs", 2, true, {4, true});
  model.Load();
  const auto request = [&] {
    return model.Request(
        {Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random), Numbers("B", TRITONSERVER_TYPE_FP32, {1, 3}, &random)});
  };
  auto batch = BatchOf(request(), request());
  batch[1]->request.requested_outputs = {"OUT_B"};
  model.Launch(batch);
  EchoAll(&model.desk(), Next(&model.desk()));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0]);
  Model::CheckEchoed(*batch[1]);
  CHECK(batch[1]->request.outputs.size() == 1);
}

void AFailureEndsItsRequestInMidStream() {
  std::mt19937_64 random(7);
  Model model("failing", 1, true, {4, true});
  model.Load();
  Desk& desk = model.desk();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  model.Launch(batch);
  const Taken taken = Next(&desk);
  CHECK(desk.Send(Reply().Echo(taken, 0, false).Echo(taken, 1, false).Echo(taken, 2, false)));
  CHECK(desk.Send(Reply().Fail(taken, 0, "the last word").Fail(taken, 1, "more is to come", false)));
  CHECK(WaitUntil([&] { return batch[0]->request.released && batch[1]->request.released; }));
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "the last word"));
  CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_INTERNAL, "more is to come"));
  // The worker is told that nobody listens any more; what it says all the same is dropped.
  CHECK(ComesTrue([&] { return taken.is_cancelled(1); }));
  CHECK(!taken.is_cancelled(0) && !taken.is_cancelled(2));
  CHECK(desk.Send(Reply().Echo(taken, 1, false).Fail(taken, 1, "again", false).Echo(taken, 2, false).End(taken, 1)));
  CHECK(desk.Send(Reply().End(taken, 2)));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[2], 2);
  CHECK(batch[0]->request.responses.size() == 1 && batch[1]->request.responses.size() == 1);
  CheckServedNow(&model, &random);
}

void TheDetailOfAFailureIsLogged() {
  std::mt19937_64 random(8);
  Model model("detail", 1, true, {4});
  model.Load();
  auto batch = BatchOf(model.Request(&random));
  model.Launch(batch);
  Answer answer;
  answer.sequence = Next(&model.desk()).sequence;
  answer.final = true;
  answer.failed = true;
  answer.code = TRITONSERVER_ERROR_UNAVAILABLE;
  answer.message = "said to the client";
  answer.detail = "the traceback";
  CHECK(model.desk().Send(Reply().Say(answer)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "said to the client"));
  CHECK(fake_triton::TakeLog() == "the traceback\n");
}

Answer Reschedule(const Taken& taken, int64_t request) {
  Answer answer;
  answer.sequence = taken.sequence;
  answer.request = request;
  answer.final = true;
  answer.failed = true;
  answer.code = pytriton::kReschedule;
  return answer;
}

void RequestsGoBackToTheServer() {
  std::mt19937_64 random(31);
  Model model("back", 1, true, {4, true});
  model.Load();
  Desk& desk = model.desk();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  batch[0]->request.reschedulable = true;
  model.Launch(batch);
  const Taken taken = Next(&desk);
  CHECK(desk.Send(Reply().Echo(taken, 0, false).Say(Reschedule(taken, 0))));
  CHECK(desk.Send(Reply().Say(Reschedule(taken, 1)).Echo(taken, 2)));
  Model::Wait(batch);
  CHECK(batch[0]->request.rescheduled && batch[0]->request.responses.size() == 1);
  CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_UNSUPPORTED, "cannot be rescheduled: no such scheduler"));
  Model::CheckEchoed(*batch[2]);
  CheckServedNow(&model, &random);
}

void ResponseParametersTravelWithEachResponse() {
  std::mt19937_64 random(32);
  Model model("parameters", 1, true, {4, true});
  model.Load();
  auto batch = BatchOf(model.Request(&random));
  model.Launch(batch);
  const Taken taken = Next(&model.desk());
  Answer answer = Reply().Echo(taken, 0).answers().answers[0];
  answer.outputs.clear();
  answer.parameters = {{"number", pytriton::ParameterType::kInt, "", 7}};
  CHECK(model.desk().Send(Reply().Say(answer)));
  Model::Wait(batch);
  CHECK(batch[0]->request.response_parameters.at("number") == "7");
}

void ABatchWaitsUntilTheOneBeforeHasReturned() {
  std::mt19937_64 random(33);
  Model model("turns", 1, true, {8, true, true});
  model.Load();
  Desk& desk = model.desk();
  std::vector<Requests> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(BatchOf(model.Request(&random)));
  std::thread launching([&] {
    for (const Requests& batch : batches) model.Launch(batch);
  });
  // The callable returns before the request has ended, or ends the request before it returns.
  const Taken first = Next(&desk);
  CHECK(!desk.Take(kNothingMs));
  CHECK(desk.Ring({static_cast<int64_t>(pytriton::BellKind::kReturned), first.sequence, 0, 0}));
  const Taken second = Next(&desk);
  CHECK(!desk.Take(kNothingMs));
  EchoAll(&desk, second);
  const Taken third = Next(&desk);
  EchoAll(&desk, third);
  launching.join();
  EchoAll(&desk, first);
  for (const Requests& batch : batches) Model::Wait(batch);
}

void OnlyStreamsMayEndWithNothing() {
  std::mt19937_64 random(9);
  Model model("nothing", 1, true, {4});
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.Launch(batch);
  const Taken taken = Next(&model.desk());
  CHECK(model.desk().Send(Reply().End(taken, 0).Echo(taken, 1)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "model 'nothing': the request was answered with nothing"));
  Model::CheckEchoed(*batch[1]);
  CHECK(model.connections() == 1);
}

void BadRequestsTakeNoPlace() {
  std::mt19937_64 random(10);
  Model model("bad", 1, true, {2});
  model.Load();
  const auto bad = [&] { return model.Request({{"A", TRITONSERVER_TYPE_FP32, {1, 3}, "eleven byte"}}); };
  for (int i = 0; i < 3; ++i) {
    auto batch = BatchOf(bad(), bad());
    model.Launch(batch);
    CHECK(Model::IsDone(batch));
  }
  auto mixed = BatchOf(bad(), model.Request(&random), bad());
  model.Launch(mixed);
  const Taken taken = Next(&model.desk());
  CHECK(taken.batch.request_count == 1);
  CHECK(model.desk().Send(Reply().Echo(taken, 0)));
  Model::Wait(mixed);
  Model::CheckEchoed(*mixed[1]);
  for (size_t i : {0, 2}) CHECK(mixed[i]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "does not match its shape"));
}

void OutputsInGpuMemoryEndTheRequest() {
  std::mt19937_64 random(11);
  Model model("gpu", 1, true, {4, true});
  model.Load();
  Desk& desk = model.desk();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  batch[0]->request.output_memory = TRITONSERVER_MEMORY_GPU;
  model.Launch(batch);
  const Taken taken = Next(&desk);
  CHECK(desk.Send(Reply().Echo(taken, 0, false).Echo(taken, 1, false)));
  CHECK(WaitUntil([&] { return batch[0]->request.released; }));
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_UNSUPPORTED, "output 'OUT_A' is wanted in GPU memory"));
  CHECK(ComesTrue([&] { return taken.is_cancelled(0); }));
  CHECK(desk.Send(Reply().Echo(taken, 0).Echo(taken, 1)));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[1], 2);
}

void StatisticsAreReportedOnce() {
  std::mt19937_64 random(12);
  Model model("statistics", 1, true, {4, true});
  model.Load();
  const auto request = [&](int64_t rows) {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {rows, 3}, &random)});
  };
  auto mixed = BatchOf(request(1), request(2), request(3));
  model.Launch(mixed);
  const Taken taken = Next(&model.desk());
  CHECK(model.desk().Send(Reply().Echo(taken, 0, false).Echo(taken, 0).Fail(taken, 1, "no").End(taken, 2)));
  auto failing = BatchOf(request(5));
  model.Launch(failing);
  CHECK(model.desk().Send(Reply().Fail(Next(&model.desk()), 0, "no")));
  auto last = BatchOf(request(7));
  model.Launch(last);
  EchoAll(&model.desk(), Next(&model.desk()));
  const TRITONBACKEND_ModelInstance& instance = *model.instance();
  CHECK(WaitUntil([&] { return instance.batches.size() == 2 && instance.succeeded == 3 && instance.failed == 2; }));
  CHECK(instance.batches[0].rows == 6 && instance.batches[1].rows == 7);
  CHECK(instance.batches[1].times[1] == 1000 && instance.batches[1].times[2] == 2000);
  CHECK(instance.batches[1].times[0] <= instance.batches[1].times[3]);
}

// Cancels request 1 of three by `cancel`, in mid-stream.
void CheckCancelled(const std::string& name, const std::function<void(TRITONBACKEND_Request*)>& cancel,
                    TRITONSERVER_Error_Code code, const std::string& reason) {
  std::mt19937_64 random(13);
  Model model(name, 1, true, {1, true});
  model.Load();
  Desk& desk = model.desk();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  auto next = BatchOf(model.Request(&random));
  cancel(&batch[1]->request);
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests* each : {&batch, &next}) {
      model.Launch(*each);
      ++launched;
    }
  });
  const Taken taken = Next(&desk);
  CHECK(WaitUntil([&] { return batch[1]->request.released; }));
  CHECK(batch[1]->failed_with(code, "model '" + name + "': " + reason));
  CHECK(ComesTrue([&] { return taken.is_cancelled(1); }));
  CHECK(!taken.is_cancelled(0) && !taken.is_cancelled(2));
  // The batch keeps its place until the worker has ended it; what is said to the request is dropped.
  CHECK(desk.Send(Reply().Echo(taken, 1, false).Echo(taken, 0).Echo(taken, 2)));
  CHECK(WaitUntil([&] { return batch[0]->request.released && batch[2]->request.released; }));
  CHECK(!desk.Take(kNothingMs));
  CHECK(launched == 0);
  CHECK(desk.Send(Reply().End(taken, 1)));
  EchoAll(&desk, Next(&desk));
  launching.join();
  Model::Wait(next);
  for (const Sent* sent : {batch[0].get(), batch[2].get(), next[0].get()}) Model::CheckEchoed(*sent);
  CHECK(batch[1]->request.responses.empty());
}

void ACancelledRequestIsAnsweredAndKeepsItsPlace() {
  CheckCancelled(
      "cancelled", [](TRITONBACKEND_Request* request) { request->cancelled = true; }, TRITONSERVER_ERROR_CANCELLED,
      "the request was cancelled");
}

void AClientThatHasLeftIsSentOneThing() {
  std::mt19937_64 random(18);
  Model model("left", 1, true, {4, true});
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.Launch(batch);
  const Taken taken = Next(&model.desk());
  batch[0]->request.cancelled = true;
  // Neither of these is sent, not even the end, until it has been looked for such clients.
  CHECK(model.desk().Send(Reply().Echo(taken, 0, false).Echo(taken, 0, false).End(taken, 0).Echo(taken, 1)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  CHECK(batch[0]->request.responses.empty());
  Model::CheckEchoed(*batch[1]);
  CheckServedNow(&model, &random);
}

void ARequestWhoseTimeHasPassedIsAnswered() {
  CheckCancelled(
      "late", [](TRITONBACKEND_Request* request) { request->timeout_us = 20000; }, TRITONSERVER_ERROR_UNAVAILABLE,
      "the request's timeout has passed");
}

void CancelledRequestsAreNotSoughtInLaterBatches() {
  std::mt19937_64 random(14);
  Model model("later", 1, true, {4, true});
  model.Load();
  Desk& desk = model.desk();
  // A worker lets a batch go when it has read it, which may be long before it has answered.
  auto cancelled = BatchOf(model.Request(&random));
  auto failing = BatchOf(model.Request(&random));
  failing[0]->request.output_memory = TRITONSERVER_MEMORY_GPU;
  for (Requests* gone : {&cancelled, &failing}) {
    model.Launch(*gone);
    const Taken first = Next(&desk);
    const Reply said = Reply().Echo(first, 0, false);
    desk.Release(first);
    auto later = BatchOf(model.Request(&random));
    model.Launch(later);
    const Taken second = Next(&desk);
    CHECK(second.offset == first.offset);
    if (gone == &failing) CHECK(desk.Send(said));
    if (gone == &cancelled) (*gone)[0]->request.cancelled = true;
    Model::Wait(*gone);
    CheckServedNow(&model, &random);
    CHECK(!second.is_cancelled(0));
    CHECK(desk.Send(Reply().End(first, 0).Echo(second, 0)));
    desk.Release(second);
    Model::Wait(later);
    Model::CheckEchoed(*later[0]);
  }
  CHECK(cancelled[0]->request.error_code == TRITONSERVER_ERROR_CANCELLED);
  CHECK(failing[0]->request.error_code == TRITONSERVER_ERROR_UNSUPPORTED);
}

void AWaitingBatchInLockStepIsToldOfCancelling() {
  std::mt19937_64 random(15);
  Model model("lock-step", 1, true, [](const pytriton::BatchMessage& batch, const char* data) {
    const auto is_cancelled = [&](int64_t request) { return __atomic_load_n(data + request, __ATOMIC_ACQUIRE) != 0; };
    CHECK(ComesTrue([&] { return is_cancelled(1) && is_cancelled(2); }));
    CHECK(batch.request_count == 3 && !is_cancelled(0));
    return fake_worker::Echo(batch, data);
  });
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  batch[1]->request.timeout_us = 1000;
  batch[2]->request.cancelled = true;
  model.CheckServed(batch);  // it is answered as a whole, with what the worker has to say
}

void AWorkerThatHangsUpFailsWhatIsInFlight() {
  std::mt19937_64 random(16);
  Model model("mortal", 1, true, {21, true});
  model.Load();
  Desk& desk = model.desk();
  std::vector<Requests> batches;
  for (int i = 0; i < 20; ++i) {
    batches.push_back(BatchOf(model.Request(&random), model.Request(&random)));
    model.Launch(batches.back());
  }
  const Taken first = Next(&desk);
  const Taken second = Next(&desk);
  CHECK(desk.Send(Reply().Echo(first, 0).Echo(first, 1).Echo(second, 0, false).Echo(second, 1)));
  CHECK(WaitUntil([&] { return Model::IsDone(batches[0]) && batches[1][1]->request.released; }));
  CHECK(WaitUntil([&] { return batches[1][0]->request.responses.size() == 1; }));
  for (int i = 0; i < 2; ++i) batches.push_back(BatchOf(model.Request(&random), model.Request(&random)));
  model.Launch(batches[20]);
  std::thread launching([&] {
    model.Launch(batches[21]);                    // until there is room for another, which is when the worker is gone
    auto last = BatchOf(model.Request(&random));  // has to find a new worker
    model.Launch(last);
    EchoAll(&model.desk(), Next(&model.desk()));
    Model::Wait(last);
    Model::CheckEchoed(*last[0]);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(kNothingMs));
  desk.HangUp();
  launching.join();
  for (size_t i = 1; i < batches.size(); ++i) {
    Model::Wait(batches[i]);
    for (const auto& sent : batches[i]) {
      if (sent == batches[1][1]) continue;
      CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal': the worker is gone"));
    }
  }
  for (const auto& sent : batches[0]) Model::CheckEchoed(*sent);
  Model::CheckEchoed(*batches[1][1]);
  CHECK(model.connections() == 2);
  model.Unbind();
  // The instance may not have heard yet that the worker is gone, and then fails the batch as it hears.
  for (int i = 0; i < 3; ++i) {
    auto orphans = BatchOf(model.Request(&random), model.Request(&random));
    model.Execute(orphans);
    for (const auto& sent : orphans) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal'"));
    if (i > 0) CHECK(Contains(orphans[0]->request.error, "has no worker: it is not bound any more"));
  }
  model.Bind();
  CheckServedNow(&model, &random);
}

void UnloadingAnswersWhatIsInFlight() {
  std::mt19937_64 random(17);
  Model model("unloaded", 1, true, {4, true});
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.Launch(batch);
  Next(&model.desk());
  model.Unload();
  CHECK(Model::IsDone(batch));
  for (const auto& sent : batch) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "the worker is gone"));
}

void IdleInstancesEnd() {
  for (bool decoupled : {false, true}) {
    std::mt19937_64 random(18);
    Model model("idle", 1, true, {4, decoupled});
    model.Load();
    if (decoupled) CheckServedNow(&model, &random);
    model.Unload();
  }
}

void NonsenseFailsWhatIsInFlight() {
  std::mt19937_64 random(19);
  const std::string unknown = "answered a request that it does not have";
  using Lie = std::function<void(Reply*, const Taken&)>;
  const auto changed = [](const std::function<void(Answer*)>& change) {
    return [change](Reply* reply, const Taken& taken) {
      Reply made;
      made.Echo(taken, 1);
      Answer answer = made.answers().answers[0];
      change(&answer);
      reply->Say(answer, std::string(12, 'x'));
    };
  };
  const std::vector<std::pair<Lie, std::string>> lies = {
      {changed([](Answer* answer) { answer->sequence = 99999; }), unknown},
      {changed([](Answer* answer) { answer->sequence = 0; }), unknown},
      {changed([](Answer* answer) { answer->request = 3; }), unknown},
      {changed([](Answer* answer) { answer->request = -1; }), unknown},
      {changed([](Answer* answer) { answer->request = std::numeric_limits<int64_t>::max(); }), unknown},
      {changed([](Answer* answer) { answer->request = 0; }), unknown},  // which has ended
      {changed([](Answer* answer) { answer->outputs[0].position = 1; }), "an output that the model does not have"},
      {changed([](Answer* answer) { answer->outputs[0].position = -1; }), "an output that the model does not have"},
      {changed([](Answer* answer) { answer->outputs.push_back(answer->outputs[0]); }), "an output twice"},
      {changed([](Answer* answer) { answer->final = false; }), "answers in parts"},
      {changed([](Answer* answer) { answer->outputs[0].tensor.offset = 1 << 20; }), "outside of its message"},
      {changed([](Answer* answer) { answer->outputs[0].tensor.size = -1; }), "outside of its message"},
  };
  Model model("lying", 1, true, {4});
  model.Load();
  int64_t connections = 1;
  const auto check_failed = [&](const std::function<void(Desk*, const Taken&)>& lie, const std::string& reason) {
    CheckServedNow(&model, &random);
    CHECK(model.connections() == connections);
    auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
    auto bystander = BatchOf(model.Request(&random));
    model.Launch(bystander);
    model.Launch(batch);
    Desk& desk = model.desk();
    Next(&desk);
    const Taken taken = Next(&desk);
    CHECK(desk.Send(Reply().Echo(taken, 0)));
    lie(&desk, taken);
    Model::Wait(batch);
    Model::Wait(bystander);
    Model::CheckEchoed(*batch[0]);
    for (const Sent* sent : {batch[1].get(), batch[2].get(), bystander[0].get()}) {
      CHECK(sent->failed_with(TRITONSERVER_ERROR_INTERNAL, reason) && sent->request.responses.empty());
    }
    CHECK(!desk.Take(kSoonMs));  // the backend has hung up
    ++connections;
  };
  for (const auto& [lie, reason] : lies) {
    check_failed(
        [&lie = lie](Desk* desk, const Taken& taken) {
          Reply reply;
          lie(&reply, taken);
          CHECK(desk->Send(reply));
        },
        reason);
  }
  const auto kind = static_cast<int64_t>(pytriton::BellKind::kAnswers);
  const std::vector<std::pair<pytriton::Bell, std::string>> bells = {
      {{99, 0, 64, 64}, "out of turn"},
      {{static_cast<int64_t>(pytriton::BellKind::kResult), 2, 64, 64}, "out of turn"},
      {{kind, 0, std::numeric_limits<int64_t>::max(), 64}, "outside of its shared memory"},
      {{kind, 0, 64, std::numeric_limits<int64_t>::max()}, "outside of its shared memory"},
      {{kind, 0, 0, 64}, "outside of its shared memory"},
      {{kind, 0, 64, -1}, "outside of its shared memory"},
      {{kind, 0, 64, 15}, "ends too early"},
  };
  for (const auto& [bell, reason] : bells) {
    check_failed([&bell = bell](Desk* desk, const Taken&) { CHECK(desk->Ring(bell)); }, reason);
  }
}

void OutputsThatDoNotFitTheirShapeFailAlone() {
  std::mt19937_64 random(20);
  constexpr int64_t kHuge = int64_t{1} << 32;
  const std::vector<std::function<void(pytriton::AnswerOutput*)>> lies = {
      [](pytriton::AnswerOutput* output) { output->tensor.shape = {2, kHuge, kHuge}; },
      [](pytriton::AnswerOutput* output) { output->tensor.shape = {2, -1, -3}; },
      [](pytriton::AnswerOutput* output) { output->tensor.shape = {5, 1}; },
      [](pytriton::AnswerOutput* output) { output->tensor.size -= 1; },
      [](pytriton::AnswerOutput* output) { output->datatype = 99; },
      [](pytriton::AnswerOutput* output) { output->datatype = TRITONSERVER_TYPE_FP64; },
      [](pytriton::AnswerOutput* output) { output->datatype = TRITONSERVER_TYPE_BYTES; },  // lengths beyond everything
  };
  Model model("ill-fitting", 1, true, {4, true});
  model.Load();
  Desk& desk = model.desk();
  for (const auto& lie : lies) {
    auto batch = BatchOf(model.Request(&random), model.Request(&random));
    model.Launch(batch);
    const Taken taken = Next(&desk);
    Reply made;
    made.Echo(taken, 0);
    Answer answer = made.answers().answers[0];
    answer.final = false;
    lie(&answer.outputs[0]);
    CHECK(desk.Send(Reply().Say(answer, std::string(12, '\xff')).Echo(taken, 1)));
    Model::CheckEchoed(*batch[1], (Model::Wait(batch), 1));
    CHECK(batch[0]->request.failed && batch[0]->request.error_code == TRITONSERVER_ERROR_INTERNAL);
    CHECK(desk.Send(Reply().End(taken, 0)));
    desk.Release(taken);
  }
  CheckServedNow(&model, &random);
  CHECK(model.connections() == 1);
}

void AWorkerThatDoesNotReadIsHeard() {
  std::mt19937_64 random(21);
  constexpr int kBatches = 1000;  // more than a socket holds
  Model model("deaf", 1, true, {kBatches});
  model.Load();
  Desk& desk = model.desk();
  std::vector<Requests> batches;
  for (int i = 0; i < kBatches; ++i) batches.push_back(BatchOf(model.Request(&random)));
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests& batch : batches) {
      model.Launch(batch);
      ++launched;
    }
  });
  for (int before = -1; before != launched || before == 0;) {  // until the socket is full
    before = launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * kNothingMs));
  }
  CHECK(launched < kBatches);
  batches[0][0]->request.cancelled = true;
  Model::Wait(batches[0]);
  Taken second;
  second.sequence = 2;
  second.batch.request_count = 1;
  CHECK(desk.Send(Reply().Fail(second, 0, "unheard of")));
  Model::Wait(batches[1]);
  CHECK(launched < kBatches);
  for (int i = 0; i < kBatches; ++i) {
    const Taken taken = Next(&desk);
    CHECK(taken.is_cancelled(0) == (i == 0));
    if (i != 1) CHECK(desk.Send(i == 0 ? Reply().End(taken, 0) : Reply().Echo(taken, 0)));
    desk.Release(taken);
  }
  launching.join();
  CHECK(batches[0][0]->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  CHECK(batches[1][0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "unheard of"));
  for (int i = 2; i < kBatches; ++i) {
    Model::Wait(batches[i]);
    Model::CheckEchoed(*batches[i][0]);
  }
}

void ADeafWorkerThatHangsUpLetsExecutionGoOn() {
  std::mt19937_64 random(22);
  Model model("deaf-and-dead", 1, true, {1000});
  model.Load();
  Desk& desk = model.desk();
  std::vector<Requests> batches;
  for (int i = 0; i < 1000; ++i) batches.push_back(BatchOf(model.Request(&random)));
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests& batch : batches) {
      if (model.connections() > 1) break;
      model.Launch(batch);
      ++launched;
    }
  });
  for (int before = -1; before != launched || before == 0;) {
    before = launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * kNothingMs));
  }
  desk.HangUp();
  launching.join();
  model.Unload();
  for (int i = 0; i < launched; ++i) {
    CHECK(Model::IsDone(batches[i]));
    CHECK(batches[i][0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "the worker is gone"));
  }
}

void MutatedAnswersNeverCrash() {
  std::mt19937_64 random(23);
  std::mt19937_64 mutations(24);
  int64_t failed = 0;
  int64_t served = 0;
  const auto session = [&mutations](Desk* desk) {
    const int64_t kWords[] = {
        0, 1, -1, 2, 3, 64, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 13, 11, 1 << 20};
    while (const auto taken = desk->Take()) {
      std::string message = Reply().Echo(*taken, 0, false).Echo(*taken, 1).Echo(*taken, 0).End(*taken, 2).message();
      for (uint64_t i = 0; i <= mutations() % 2; ++i) {
        const int64_t word =
            mutations() % 4 == 0 ? static_cast<int64_t>(mutations()) : kWords[mutations() % std::size(kWords)];
        std::memcpy(message.data() + mutations() % (message.size() / 8) * 8, &word, 8);
      }
      if (mutations() % 16 == 0) message.resize(mutations() % message.size());
      desk->SendMessage(pytriton::BellKind::kAnswers, 0, message);
      desk->Release(*taken);
      // What a mutation has left open ends here, unless the backend has hung up.
      Reply rest;
      for (int64_t i = 0; i < taken->batch.request_count; ++i) rest.End(*taken, i);
      desk->Send(rest);
    }
  };
  Model model("mutated", 2, true, {1, true}, session);
  model.Load();
  constexpr int kBatches = 300;
  for (int i = 0; i < kBatches; ++i) {
    const auto request = [&](int64_t dim) {
      return model.Request(
          {Bytes("A", {1, 2}, {"first", "2nd"}), Numbers("B", TRITONSERVER_TYPE_UINT8, {1, dim}, &random)});
    };
    auto batch = BatchOf(request(1), request(1 + i % 2), request(1));
    model.Execute(batch);
    for (const auto& sent : batch) (sent->request.failed ? failed : served) += 1;
  }
  CHECK(failed > kBatches / 10 && served > kBatches / 10);
}

// Answers many batches at a time at random, forgets some requests until they are cancelled, and now and then hangs up.
void Improvise(Desk* desk, bool decoupled, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  enum class State { kOpen, kForgotten, kEnded };
  struct Open {
    Taken taken;
    std::vector<State> states;
  };
  std::vector<Open> open;
  for (;;) {
    Reply reply;
    for (uint64_t answers = 1 + below(4); answers > 0 && !open.empty(); --answers) {
      const size_t index = below(open.size());
      Open& each = open[index];
      const size_t request = below(each.states.size());
      State& state = each.states[request];
      if (state == State::kEnded) continue;
      if (state == State::kOpen && below(100) == 0) state = State::kForgotten;
      if (state == State::kForgotten && !each.taken.is_cancelled(request)) continue;
      bool final = true;
      if (each.taken.is_cancelled(request) || (decoupled && below(4) == 0)) {
        reply.End(each.taken, request);
      } else if (below(10) == 0) {
        reply.Fail(each.taken, request, "at random", final = below(2) == 0);
      } else {
        reply.Echo(each.taken, request, final = !decoupled || below(2) == 0);
      }
      if (final) state = State::kEnded;
      if (!std::all_of(each.states.begin(), each.states.end(), [](State s) { return s == State::kEnded; })) continue;
      desk->Release(each.taken);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
    }
    if (below(500) == 0) desk->HangUp();
    const bool idle = reply.answers().answers.empty();
    if (!idle) desk->Send(reply);
    if (!idle && below(3) > 0) continue;
    if (auto taken = desk->Take(open.empty() ? -1 : 1)) {
      const auto count = static_cast<size_t>(taken->batch.request_count);
      open.push_back({std::move(*taken), std::vector<State>(count, State::kOpen)});
    } else if (desk->gone()) {
      return;
    }
  }
}

void InstancesRunSideBySide() {
  constexpr int kInstances = 4;
  constexpr int kBatches = 400;
  Trimmer trimmer;
  pytriton::Services services([](const auto&) {});
  std::atomic<int64_t> served{0};
  std::atomic<int64_t> cancelled{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kInstances; ++number) {
    threads.emplace_back([&trimmer, &services, &served, &cancelled, number] {
      const bool decoupled = number % 2 == 0;
      std::mt19937_64 random(100 + number);
      std::atomic<uint64_t> sessions{0};
      Model model("instance-" + std::to_string(number), 3, true, {1 + number * 3, decoupled},
                  [&](Desk* desk) { Improvise(desk, decoupled, 1000 * number + ++sessions); });
      std::vector<std::pair<Requests, std::vector<bool>>> batches;
      {
        pytriton::Instance instance(
            model.instance(), [&trimmer](const auto& arena, const auto&) { trimmer.Watch(arena); }, &services);
        for (int i = 0; i < kBatches; ++i) {
          auto& [batch, good] = batches.emplace_back();
          std::vector<TRITONBACKEND_Request*> requests;
          for (uint64_t n = 0; n <= random() % 5; ++n) {
            auto [sent, is_good] = RandomRequest(model, &random);
            requests.push_back(&sent->request);
            good.push_back(is_good);
            batch.push_back(std::move(sent));
            batch.back()->request.timeout_us = 1000 + random() % 50000;
          }
          instance.Execute(requests.data(), static_cast<uint32_t>(requests.size()));
          trimmer.Batch();
          Sent& any = *batches[random() % batches.size()].first[0];
          if (random() % 4 == 0) any.request.cancelled = true;
        }
        for (size_t i = 0; i + 5 < batches.size(); ++i) Model::Wait(batches[i].first);
      }
      for (const auto& [batch, good] : batches) {
        CHECK(Model::IsDone(batch));
        for (size_t n = 0; n < batch.size(); ++n) {
          const Sent& sent = *batch[n];
          if (!sent.request.failed) {
            CHECK(good[n] && (decoupled || sent.request.responses.size() == 1));
            Model::CheckEchoed(sent, sent.request.responses.size());
            ++served;
            continue;
          }
          const std::string& error = sent.request.error;
          const bool late = Contains(error, "was cancelled") || Contains(error, "timeout has passed");
          if (late) ++cancelled;
          CHECK(late || Contains(error, "at random") || Contains(error, "gone") ||
                (!good[n] && Contains(error, "does not match its shape")));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(served > kInstances * kBatches / 2);
  CHECK(cancelled > 0);
}

const Behaviours kBehaviours = {
    {"answers_come_in_any_order", AnswersComeInAnyOrder},
    {"every_input_comes_back", EveryInputComesBack},
    {"models_without_batches_are_served", ModelsWithoutBatchesAreServed},
    {"a_batch_waits_for_room", ABatchWaitsForRoom},
    {"streams_have_any_number_of_responses", StreamsHaveAnyNumberOfResponses},
    {"only_requested_outputs_are_sent", OnlyRequestedOutputsAreSent},
    {"a_failure_ends_its_request_in_mid_stream", AFailureEndsItsRequestInMidStream},
    {"the_detail_of_a_failure_is_logged", TheDetailOfAFailureIsLogged},
    {"requests_go_back_to_the_server", RequestsGoBackToTheServer},
    {"response_parameters_travel_with_each_response", ResponseParametersTravelWithEachResponse},
    {"a_batch_waits_until_the_one_before_has_returned", ABatchWaitsUntilTheOneBeforeHasReturned},
    {"only_streams_may_end_with_nothing", OnlyStreamsMayEndWithNothing},
    {"bad_requests_take_no_place", BadRequestsTakeNoPlace},
    {"outputs_in_gpu_memory_end_the_request", OutputsInGpuMemoryEndTheRequest},
    {"statistics_are_reported_once", StatisticsAreReportedOnce},
    {"a_cancelled_request_is_answered_and_keeps_its_place", ACancelledRequestIsAnsweredAndKeepsItsPlace},
    {"a_request_whose_time_has_passed_is_answered", ARequestWhoseTimeHasPassedIsAnswered},
    {"cancelled_requests_are_not_sought_in_later_batches", CancelledRequestsAreNotSoughtInLaterBatches},
    {"a_waiting_batch_in_lock_step_is_told_of_cancelling", AWaitingBatchInLockStepIsToldOfCancelling},
    {"a_client_that_has_left_is_sent_one_thing", AClientThatHasLeftIsSentOneThing},
    {"a_worker_that_hangs_up_fails_what_is_in_flight", AWorkerThatHangsUpFailsWhatIsInFlight},
    {"unloading_answers_what_is_in_flight", UnloadingAnswersWhatIsInFlight},
    {"idle_instances_end", IdleInstancesEnd},
    {"nonsense_fails_what_is_in_flight", NonsenseFailsWhatIsInFlight},
    {"outputs_that_do_not_fit_their_shape_fail_alone", OutputsThatDoNotFitTheirShapeFailAlone},
    {"a_worker_that_does_not_read_is_heard", AWorkerThatDoesNotReadIsHeard},
    {"a_deaf_worker_that_hangs_up_lets_execution_go_on", ADeafWorkerThatHangsUpLetsExecutionGoOn},
    {"mutated_answers_never_crash", MutatedAnswersNeverCrash},
    {"instances_run_side_by_side", InstancesRunSideBySide},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviours, argc, argv); }
