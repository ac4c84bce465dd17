// Batches at workers that take many at a time, and their responses:
// `concurrent_executor_responses_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "concurrent_executor_fixture.h"

namespace data_path {

namespace {

using fake_triton::WaitUntil;
using fake_worker::Reply;
using fake_worker::Taken;
using fake_worker::WorkerEnd;
using pytriton::ResponseEntry;

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
    model.Submit(batches.back());
    taken.push_back(Next(&model.worker_end()));
  }
  for (size_t request : {2, 0, 1}) {
    Reply reply;  // the last batch first, one request of each
    for (auto each = taken.rbegin(); each != taken.rend(); ++each) reply.Echo(*each, request);
    CHECK(model.worker_end().Send(reply));
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
    model.Submit(batch);
    if (std::find(good.begin(), good.end(), true) == good.end()) continue;
    EchoAll(&model.worker_end(), Next(&model.worker_end()));
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
  model.Submit(batch);
  EchoAll(&model.worker_end(), Next(&model.worker_end()));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0]);
}

void ABatchWaitsForRoom() {
  std::mt19937_64 random(4);
  Model model("room", 1, true, {2});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  auto first = BatchOf(model.Request(&random), model.Request(&random));
  auto second = BatchOf(model.Request(&random));
  auto third = BatchOf(model.Request(&random));
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests* batch : {&first, &second, &third}) {
      model.Submit(*batch);
      ++launched;
    }
  });
  const Taken one = Next(&worker_end);
  const Taken two = Next(&worker_end);
  CHECK(WaitUntil([&] { return launched == 1; }));
  CHECK(worker_end.Send(Reply().Echo(one, 1)));  // the batch is not through with that
  CHECK(!worker_end.Take(kNothingMs));
  CHECK(launched == 1);  // Triton thinks of the instance as busy, and gives the third batch to another if there is one
  CHECK(worker_end.Send(Reply().Echo(one, 0)));
  const Taken three = Next(&worker_end);
  CHECK(launched == 2);
  CHECK(worker_end.Send(Reply().Echo(two, 0).Echo(three, 0)));
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
  WorkerEnd& worker_end = model.worker_end();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random), model.Request(&random));
  model.Submit(batch);
  const Taken taken = Next(&worker_end);
  CHECK(worker_end.Send(Reply().End(taken, 0).Echo(taken, 1)));  // nothing, and one that is the last
  CHECK(worker_end.Send(Reply().Echo(taken, 2, false)));
  CHECK(WaitUntil([&] { return batch[2]->request.responses.size() == 1; }));
  CHECK(WaitUntil([&] { return batch[0]->request.released && batch[1]->request.released; }));
  CHECK(WaitUntil([&] { return !batch[2]->request.answered; }));
  constexpr int kMany = 300;
  for (int i = 0; i < kMany; ++i) CHECK(worker_end.Send(Reply().Echo(taken, 3, false).Echo(taken, 3, false)));
  CHECK(worker_end.Send(Reply().Echo(taken, 3).End(taken, 2)));
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
  model.Submit(batch);
  EchoAll(&model.worker_end(), Next(&model.worker_end()));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0]);
  Model::CheckEchoed(*batch[1]);
  CHECK(batch[1]->request.outputs.size() == 1);
}

void AFailureEndsItsRequestInMidStream() {
  std::mt19937_64 random(7);
  Model model("failing", 1, true, {4, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.Submit(batch);
  const Taken taken = Next(&worker_end);
  CHECK(worker_end.Send(Reply().Echo(taken, 0, false).Echo(taken, 1, false)));
  CHECK(worker_end.Send(Reply().Fail(taken, 0, "the last word")));
  CHECK(WaitUntil([&] { return batch[0]->request.released; }));
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "the last word"));
  CHECK(!taken.is_cancelled(0) && !taken.is_cancelled(1));
  CHECK(worker_end.Send(Reply().Echo(taken, 1, false).End(taken, 1)));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[1], 2);
  CHECK(batch[0]->request.responses.size() == 1);
  CheckServedNow(&model, &random);
}

void OthersMayFollowAFailure() {
  std::mt19937_64 random(9);
  Model model("going on", 1, true, {4, true});
  model.Load();
  auto batch = BatchOf(model.Request(&random));
  model.Submit(batch);
  const Taken taken = Next(&model.worker_end());
  CHECK(model.worker_end().Send(Reply().Echo(taken, 0, false).Fail(taken, 0, "more is to come", false)));
  CHECK(model.worker_end().Send(Reply().Echo(taken, 0, false).Fail(taken, 0, "again", false).End(taken, 0)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "again"));
  CHECK(batch[0]->request.responses.size() == 2);
  CHECK(!taken.is_cancelled(0));
  CheckServedNow(&model, &random);
}

void TheDetailOfAFailureIsLogged() {
  std::mt19937_64 random(8);
  Model model("detail", 1, true, {4});
  model.Load();
  auto batch = BatchOf(model.Request(&random));
  model.Submit(batch);
  ResponseEntry response;
  response.sequence = Next(&model.worker_end()).sequence;
  response.final = true;
  response.failure = pytriton::Failure{TRITONSERVER_ERROR_UNAVAILABLE, "said to the client", "the traceback", ""};
  CHECK(model.worker_end().Send(Reply().Say(response)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "said to the client"));
  CHECK(fake_triton::TakeLog() == "the traceback\n");
}

ResponseEntry Reschedule(const Taken& taken, int64_t request) {
  ResponseEntry response;
  response.sequence = taken.sequence;
  response.request = request;
  response.final = true;
  response.failure = pytriton::Failure{pytriton::kReschedule, "", "", ""};
  return response;
}

void RequestsGoBackToTheServer() {
  std::mt19937_64 random(31);
  Model model("back", 1, true, {4, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  batch[0]->request.reschedulable = true;
  model.Submit(batch);
  const Taken taken = Next(&worker_end);
  CHECK(worker_end.Send(Reply().Echo(taken, 0, false).Say(Reschedule(taken, 0))));
  CHECK(worker_end.Send(Reply().Say(Reschedule(taken, 1)).Echo(taken, 2)));
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
  model.Submit(batch);
  const Taken taken = Next(&model.worker_end());
  ResponseEntry response = Reply().Echo(taken, 0).responses().responses[0];
  response.outputs.clear();
  response.parameters = {{"number", pytriton::ParameterType::kInt, "", 7}};
  CHECK(model.worker_end().Send(Reply().Say(response)));
  Model::Wait(batch);
  CHECK(batch[0]->request.response_parameters.at("number") == "7");
}

void ABatchWaitsUntilTheOneBeforeHasReturned() {
  std::mt19937_64 random(33);
  Model model("turns", 1, true, {8, true, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  const std::vector<Requests> batches = SingleRequests(model, 3, &random);
  Submission submission(&model, batches);
  // The callable returns before the request has ended, or ends the request before it returns.
  const Taken first = Next(&worker_end);
  CHECK(!worker_end.Take(kNothingMs));
  CHECK(worker_end.Notify({static_cast<int64_t>(pytriton::NotificationKind::kReturned), first.sequence, 0, 0}));
  const Taken second = Next(&worker_end);
  CHECK(!worker_end.Take(kNothingMs));
  EchoAll(&worker_end, second);
  const Taken third = Next(&worker_end);
  EchoAll(&worker_end, third);
  submission.Join();
  EchoAll(&worker_end, first);
  for (const Requests& batch : batches) Model::Wait(batch);
}

void AResultRespondsToAllRequests() {
  std::mt19937_64 random(34);
  Model model("whole", 1, true, {4});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random), model.Request(&random));
  batch[2]->request.reschedulable = true;
  auto other = BatchOf(model.Request(&random));
  model.Submit(batch);
  model.Submit(other);
  const Taken taken = Next(&worker_end);
  EchoAll(&worker_end, Next(&worker_end));
  pytriton::ResultMessage result = fake_worker::EchoOf(taken.batch);
  result.compute_start_ns = 1000;
  result.compute_end_ns = 2000;
  result.failures = {{1, {TRITONSERVER_ERROR_UNAVAILABLE, "not this one", "the traceback", "ValueError"}},
                     {2, {pytriton::kReschedule, "", "", ""}}};
  result.parameters = {{3, {{"number", pytriton::ParameterType::kInt, "", 7}}}};
  CHECK(SendResult(&worker_end, taken, result));
  worker_end.Release(taken);
  Model::Wait(batch);
  Model::Wait(other);
  Model::CheckEchoed(*batch[0]);
  CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "not this one"));
  CHECK(fake_triton::TakeLog() == "the traceback\n");
  CHECK(batch[2]->request.rescheduled && batch[2]->request.responses.empty());
  Model::CheckEchoed(*batch[3]);
  CHECK(batch[3]->request.response_parameters.at("number") == "7");
  Model::CheckEchoed(*other[0]);
  const TRITONBACKEND_ModelInstance& instance = *model.instance();
  CHECK(WaitUntil([&] { return instance.batches.size() == 2 && instance.succeeded == 3 && instance.failed == 1; }));
  CHECK(instance.batches[1].rows == 4 && instance.batches[1].times[1] == 1000 && instance.batches[1].times[2] == 2000);
  CheckServedNow(&model, &random);
}

void ABatchWaitsUntilTheOnesBeforeAreTaken() {
  std::mt19937_64 random(35);
  Mode mode = {8};
  mode.at_doorbell = true;
  Model model("taken", 1, true, mode);
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  const std::vector<Requests> batches = SingleRequests(model, 3, &random);
  Submission submission(&model, batches);
  const Taken first = Next(&worker_end);
  const Taken second = Next(&worker_end);
  CHECK(submission.count() == 1);  // nobody waits for the only batch to be taken
  worker_end.Acknowledge();
  CHECK(!worker_end.Take(kNothingMs));
  CHECK(submission.count() == 1);
  worker_end.Acknowledge();
  const Taken third = Next(&worker_end);
  CHECK(submission.count() == 2);
  for (const Taken* taken : {&first, &second}) EchoAll(&worker_end, *taken);  // it is taken late, and alone
  worker_end.Acknowledge();
  submission.Join();
  EchoAll(&worker_end, third);
  for (const Requests& batch : batches) Model::Wait(batch);
}

void OnlyStreamsMayEndWithNothing() {
  std::mt19937_64 random(9);
  Model model("nothing", 1, true, {4});
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.Submit(batch);
  const Taken taken = Next(&model.worker_end());
  CHECK(model.worker_end().Send(Reply().End(taken, 0).Echo(taken, 1)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "model 'nothing': the request ended without a response"));
  Model::CheckEchoed(*batch[1]);
  CHECK(model.connections() == 1);
}

void StatisticsAreReportedOnce() {
  std::mt19937_64 random(12);
  Model model("statistics", 1, true, {4, true});
  model.Load();
  const auto request = [&](int64_t rows) {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {rows, 3}, &random)});
  };
  auto mixed = BatchOf(request(1), request(2), request(3));
  model.Submit(mixed);
  const Taken taken = Next(&model.worker_end());
  CHECK(model.worker_end().Send(Reply().Echo(taken, 0, false).Echo(taken, 0).Fail(taken, 1, "no").End(taken, 2)));
  auto failing = BatchOf(request(5));
  model.Submit(failing);
  CHECK(model.worker_end().Send(Reply().Fail(Next(&model.worker_end()), 0, "no")));
  auto last = BatchOf(request(7));
  model.Submit(last);
  EchoAll(&model.worker_end(), Next(&model.worker_end()));
  const TRITONBACKEND_ModelInstance& instance = *model.instance();
  CHECK(WaitUntil([&] { return instance.batches.size() == 2 && instance.succeeded == 3 && instance.failed == 2; }));
  CHECK(instance.batches[0].rows == 6 && instance.batches[1].rows == 7);
  CHECK(instance.batches[1].times[1] == 1000 && instance.batches[1].times[2] == 2000);
  CHECK(instance.batches[1].times[0] <= instance.batches[1].times[3]);
}

const Behaviors kBehaviors = {
    {"answers_come_in_any_order", AnswersComeInAnyOrder},
    {"every_input_comes_back", EveryInputComesBack},
    {"models_without_batches_are_served", ModelsWithoutBatchesAreServed},
    {"a_batch_waits_for_room", ABatchWaitsForRoom},
    {"streams_have_any_number_of_responses", StreamsHaveAnyNumberOfResponses},
    {"only_requested_outputs_are_sent", OnlyRequestedOutputsAreSent},
    {"a_failure_ends_its_request_in_mid_stream", AFailureEndsItsRequestInMidStream},
    {"others_may_follow_a_failure", OthersMayFollowAFailure},
    {"the_detail_of_a_failure_is_logged", TheDetailOfAFailureIsLogged},
    {"requests_go_back_to_the_server", RequestsGoBackToTheServer},
    {"response_parameters_travel_with_each_response", ResponseParametersTravelWithEachResponse},
    {"a_batch_waits_until_the_one_before_has_returned", ABatchWaitsUntilTheOneBeforeHasReturned},
    {"a_result_responds_to_all_requests", AResultRespondsToAllRequests},
    {"a_batch_waits_until_the_ones_before_are_taken", ABatchWaitsUntilTheOnesBeforeAreTaken},
    {"only_streams_may_end_with_nothing", OnlyStreamsMayEndWithNothing},
    {"statistics_are_reported_once", StatisticsAreReportedOnce},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
