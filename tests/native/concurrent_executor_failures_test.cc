// Requests that cannot be served, and workers of many batches that hang up, do not read, or send nonsense:
// `concurrent_executor_failures_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "concurrent_executor_fixture.h"
#include "model_instance/concurrent_executor.h"
#include "model_instance/instance_context.h"
#include "service_client.h"
#include "services/model_metrics.h"
#include "triton/reserved_parameters.h"

namespace data_path {

namespace {

using fake_triton::WaitUntil;
using fake_worker::Reply;
using fake_worker::Taken;
using fake_worker::WorkerEnd;
using pytriton::ResponseEntry;

void BadRequestsTakeNoPlace() {
  std::mt19937_64 random(10);
  Model model("bad", 1, true, {2});
  model.Load();
  const auto bad = [&] { return model.Request({{"A", TRITONSERVER_TYPE_FP32, {1, 3}, "eleven byte"}}); };
  for (int i = 0; i < 3; ++i) {
    auto batch = BatchOf(bad(), bad());
    model.Submit(batch);
    CHECK(Model::IsDone(batch));
  }
  auto mixed = BatchOf(bad(), model.Request(&random), bad());
  model.Submit(mixed);
  const Taken taken = Next(&model.worker_end());
  CHECK(taken.batch.request_count == 1);
  CHECK(model.worker_end().Send(Reply().Echo(taken, 0)));
  Model::Wait(mixed);
  Model::CheckEchoed(*mixed[1]);
  for (size_t i : {0, 2}) CHECK(mixed[i]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "does not match its shape"));
}

void OutputsThatCannotBeCopiedEndTheRequest() {
  std::mt19937_64 random(11);
  Model model("gpu", 1, true, {4, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  batch[0]->request.output_memory = TRITONSERVER_MEMORY_GPU;
  model.Submit(batch);
  const Taken taken = Next(&worker_end);
  CHECK(worker_end.Send(Reply().Echo(taken, 0, false).Echo(taken, 1, false)));
  CHECK(WaitUntil([&] { return batch[0]->request.released; }));
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "there is no driver for GPUs"));
  CHECK(ComesTrue([&] { return taken.is_cancelled(0); }));
  CHECK(worker_end.Send(Reply().Echo(taken, 0).Echo(taken, 1)));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[1], 2);
}

void AWorkerThatHangsUpFailsWhatIsInFlight() {
  std::mt19937_64 random(16);
  Model model("mortal", 1, true, {21, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  std::vector<Requests> batches;
  for (int i = 0; i < 20; ++i) {
    batches.push_back(BatchOf(model.Request(&random), model.Request(&random)));
    model.Submit(batches.back());
  }
  const Taken first = Next(&worker_end);
  const Taken second = Next(&worker_end);
  CHECK(worker_end.Send(Reply().Echo(first, 0).Echo(first, 1).Echo(second, 0, false).Echo(second, 1)));
  CHECK(WaitUntil([&] { return Model::IsDone(batches[0]) && batches[1][1]->request.released; }));
  CHECK(WaitUntil([&] { return batches[1][0]->request.responses.size() == 1; }));
  for (int i = 0; i < 2; ++i) batches.push_back(BatchOf(model.Request(&random), model.Request(&random)));
  model.Submit(batches[20]);
  std::thread launching([&] {
    model.Submit(batches[21]);                    // until there is room for another, which is when the worker has gone
    auto last = BatchOf(model.Request(&random));  // has to find a new worker
    model.Submit(last);
    EchoAll(&model.worker_end(), Next(&model.worker_end()));
    Model::Wait(last);
    Model::CheckEchoed(*last[0]);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(kNothingMs));
  worker_end.HangUp();
  launching.join();
  for (size_t i = 1; i < batches.size(); ++i) {
    Model::Wait(batches[i]);
    for (const auto& sent : batches[i]) {
      if (sent == batches[1][1]) continue;
      CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal': the worker has gone"));
    }
  }
  for (const auto& sent : batches[0]) Model::CheckEchoed(*sent);
  Model::CheckEchoed(*batches[1][1]);
  CHECK(model.connections() == 2);
  model.Unbind();
  // The instance may not have acknowledged yet that the worker has gone, and then fails the batch when it notices.
  for (int i = 0; i < 3; ++i) {
    auto orphans = BatchOf(model.Request(&random), model.Request(&random));
    model.Execute(orphans);
    for (const auto& sent : orphans) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal'"));
    if (i > 0) CHECK(Contains(orphans[0]->request.error, "has no worker: it is no longer bound"));
  }
  model.Bind();
  CheckServedNow(&model, &random);
}

void UnloadingAnswersWhatIsInFlight() {
  std::mt19937_64 random(17);
  Model model("unloaded", 1, true, {4, true});
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.Submit(batch);
  Next(&model.worker_end());
  model.Unload();
  CHECK(Model::IsDone(batch));
  for (const auto& sent : batch) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "the worker has gone"));
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
  const std::string unknown = "responded to a request that it does not have";
  using Lie = std::function<void(Reply*, const Taken&)>;
  const auto changed = [](const std::function<void(ResponseEntry*)>& change) {
    return [change](Reply* reply, const Taken& taken) {
      Reply made;
      made.Echo(taken, 1);
      ResponseEntry response = made.responses().responses[0];
      change(&response);
      reply->Say(response, std::string(12, 'x'));
    };
  };
  const std::vector<std::pair<Lie, std::string>> lies = {
      {changed([](ResponseEntry* response) { response->sequence = 99999; }), unknown},
      {changed([](ResponseEntry* response) { response->sequence = 0; }), unknown},
      {changed([](ResponseEntry* response) { response->request = 3; }), unknown},
      {changed([](ResponseEntry* response) { response->request = -1; }), unknown},
      {changed([](ResponseEntry* response) { response->request = std::numeric_limits<int64_t>::max(); }), unknown},
      {changed([](ResponseEntry* response) { response->request = 0; }), unknown},  // which has ended
      {changed([](ResponseEntry* response) { response->outputs[0].position = 1; }),
       "an output that the model does not have"},
      {changed([](ResponseEntry* response) { response->outputs[0].position = -1; }),
       "an output that the model does not have"},
      {changed([](ResponseEntry* response) { response->outputs.push_back(response->outputs[0]); }), "an output twice"},
      {changed([](ResponseEntry* response) { response->final = false; }), "sent several responses"},
      {changed([](ResponseEntry* response) { response->outputs[0].tensor.offset = 1 << 20; }), "outside its message"},
      {changed([](ResponseEntry* response) { response->outputs[0].tensor.size = -1; }), "outside its message"},
  };
  Model model("lying", 1, true, {4});
  model.Load();
  int64_t connections = 1;
  const auto check_failed = [&](const std::function<void(WorkerEnd*, const Taken&)>& lie, const std::string& reason) {
    CheckServedNow(&model, &random);
    CHECK(model.connections() == connections);
    auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
    auto bystander = BatchOf(model.Request(&random));
    model.Submit(bystander);
    model.Submit(batch);
    WorkerEnd& worker_end = model.worker_end();
    Next(&worker_end);
    const Taken taken = Next(&worker_end);
    CHECK(worker_end.Send(Reply().Echo(taken, 0)));
    lie(&worker_end, taken);
    Model::Wait(batch);
    Model::Wait(bystander);
    Model::CheckEchoed(*batch[0]);
    for (const Sent* sent : {batch[1].get(), batch[2].get(), bystander[0].get()}) {
      CHECK(sent->failed_with(TRITONSERVER_ERROR_INTERNAL, reason) && sent->request.responses.empty());
    }
    CHECK(!worker_end.Take(kSoonMs));  // the backend has hung up
    ++connections;
  };
  for (const auto& [lie, reason] : lies) {
    check_failed(
        [&lie = lie](WorkerEnd* worker_end, const Taken& taken) {
          Reply reply;
          lie(&reply, taken);
          CHECK(worker_end->Send(reply));
        },
        reason);
  }
  const auto kind = static_cast<int64_t>(pytriton::NotificationKind::kResponses);
  const std::vector<std::pair<pytriton::Notification, std::string>> notifications = {
      {{99, 0, 64, 64}, "out of turn"},
      {{static_cast<int64_t>(pytriton::NotificationKind::kWelcome), 2, 64, 64}, "out of turn"},
      {{static_cast<int64_t>(pytriton::NotificationKind::kResult), 2, 64, 15}, "ends too early"},
      {{kind, 0, std::numeric_limits<int64_t>::max(), 64}, "outside its shared memory"},
      {{kind, 0, 64, std::numeric_limits<int64_t>::max()}, "outside its shared memory"},
      {{kind, 0, 0, 64}, "outside its shared memory"},
      {{kind, 0, 64, -1}, "outside its shared memory"},
      {{kind, 0, 68, 64}, "a block at 68, which is not aligned to a word"},
      {{kind, 0, 64, 15}, "ends too early"},
  };
  for (const auto& [notification, reason] : notifications) {
    check_failed([&notification = notification](WorkerEnd* worker_end,
                                                const Taken&) { CHECK(worker_end->Notify(notification)); },
                 reason);
  }
}

void ResultsOutOfTurnFailWhatIsInFlight() {
  std::mt19937_64 random(24);
  struct Lie {
    bool decoupled;
    int64_t sequence;       // relative to the batch's
    int64_t request_count;  // as well
    bool responded;         // to a request of the batch, before
    std::string reason;
  };
  const std::vector<Lie> lies = {
      {true, 0, 0, false, "a result out of turn"},
      {false, 5, 0, false, "a result out of turn"},
      {false, 0, 0, true, "a result out of turn"},
      {false, 0, 1, false, "for another number of requests"},
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    const Lie& lie = lies[i];
    Model model("turn" + std::to_string(i), 1, true, {4, lie.decoupled});
    model.Load();
    auto batch = BatchOf(model.Request(&random), model.Request(&random));
    model.Submit(batch);
    Taken taken = Next(&model.worker_end());
    if (lie.responded) CHECK(model.worker_end().Send(Reply().Echo(taken, 0)));
    pytriton::ResultMessage result = fake_worker::EchoOf(taken.batch);
    result.request_count += lie.request_count;
    taken.sequence += lie.sequence;
    CHECK(SendResult(&model.worker_end(), taken, result));
    Model::Wait(batch);
    if (lie.responded) Model::CheckEchoed(*batch[0]);
    CHECK(lie.responded || batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, lie.reason));
    CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_INTERNAL, lie.reason));
    CheckServedNow(&model, &random);
    CHECK(model.connections() == 2);
  }
}

void AWorkerThatTakesNothingEnds() {
  std::mt19937_64 random(25);
  Mode mode = {8};
  mode.at_doorbell = true;
  Model model("stuck", 1, true, mode);
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  const std::vector<Requests> batches = SingleRequests(model, 2, &random);
  Submission submission(&model, batches);
  Next(&worker_end);
  Next(&worker_end);
  batches[1][0]->request.cancelled = true;  // is answered meanwhile
  Model::Wait(batches[1]);
  worker_end.HangUp();
  submission.Join();
  Model::Wait(batches[0]);
  CHECK(batches[0][0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "the worker has gone"));
  CheckServedNow(&model, &random);
}

void OutputsThatDoNotFitTheirShapeFailAlone() {
  std::mt19937_64 random(20);
  constexpr int64_t kHuge = int64_t{1} << 32;
  const std::vector<std::function<void(pytriton::ResponseOutput*)>> lies = {
      [](pytriton::ResponseOutput* output) { output->tensor.shape = {2, kHuge, kHuge}; },
      [](pytriton::ResponseOutput* output) { output->tensor.shape = {2, -1, -3}; },
      [](pytriton::ResponseOutput* output) { output->tensor.shape = {5, 1}; },
      [](pytriton::ResponseOutput* output) { output->tensor.size -= 1; },
      [](pytriton::ResponseOutput* output) { output->datatype = 99; },
      [](pytriton::ResponseOutput* output) { output->datatype = TRITONSERVER_TYPE_FP64; },
      [](pytriton::ResponseOutput* output) {
        output->datatype = TRITONSERVER_TYPE_BYTES;
      },  // lengths beyond everything
  };
  Model model("ill-fitting", 1, true, {4, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  for (const auto& lie : lies) {
    auto batch = BatchOf(model.Request(&random), model.Request(&random));
    model.Submit(batch);
    const Taken taken = Next(&worker_end);
    Reply made;
    made.Echo(taken, 0);
    ResponseEntry response = made.responses().responses[0];
    response.final = false;
    lie(&response.outputs[0]);
    CHECK(worker_end.Send(Reply().Say(response, std::string(12, '\xff')).Echo(taken, 1)));
    Model::CheckEchoed(*batch[1], (Model::Wait(batch), 1));
    CHECK(batch[0]->request.failed && batch[0]->request.error_code == TRITONSERVER_ERROR_INTERNAL);
    CHECK(worker_end.Send(Reply().End(taken, 0)));
    worker_end.Release(taken);
  }
  CheckServedNow(&model, &random);
  CHECK(model.connections() == 1);
}

void AWorkerThatDoesNotReadIsServed() {
  std::mt19937_64 random(21);
  constexpr int kBatches = 1000;  // more than a socket holds
  Model model("unread", 1, true, {kBatches});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  const std::vector<Requests> batches = SingleRequests(model, kBatches, &random);
  Submission submission(&model, batches);
  for (int before = -1; before != submission.count() || before == 0;) {  // until the socket is full
    before = submission.count();
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * kNothingMs));
  }
  CHECK(submission.count() < kBatches);
  batches[0][0]->request.cancelled = true;
  Model::Wait(batches[0]);
  Taken second;
  second.sequence = 2;
  second.batch.request_count = 1;
  CHECK(worker_end.Send(Reply().Fail(second, 0, "unusual")));
  Model::Wait(batches[1]);
  CHECK(submission.count() < kBatches);
  for (int i = 0; i < kBatches; ++i) {
    const Taken taken = Next(&worker_end);
    CHECK(taken.is_cancelled(0) == (i == 0));
    if (i != 1) CHECK(worker_end.Send(i == 0 ? Reply().End(taken, 0) : Reply().Echo(taken, 0)));
    worker_end.Release(taken);
  }
  submission.Join();
  CHECK(batches[0][0]->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  CHECK(batches[1][0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "unusual"));
  for (int i = 2; i < kBatches; ++i) {
    Model::Wait(batches[i]);
    Model::CheckEchoed(*batches[i][0]);
  }
}

void ExecutionGoesOnAfterAWorkerThatDoesNotReadHangsUp() {
  std::mt19937_64 random(22);
  Model model("unread-and-dead", 1, true, {1000});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  std::vector<Requests> batches;
  for (int i = 0; i < 1000; ++i) batches.push_back(BatchOf(model.Request(&random)));
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests& batch : batches) {
      if (model.connections() > 1) break;
      model.Submit(batch);
      ++launched;
    }
  });
  for (int before = -1; before != launched || before == 0;) {
    before = launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * kNothingMs));
  }
  worker_end.HangUp();
  launching.join();
  model.Unload();
  for (int i = 0; i < launched; ++i) {
    CHECK(Model::IsDone(batches[i]));
    CHECK(batches[i][0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "the worker has gone"));
  }
}

// The worker keeps its service channel, as one in a process of its own does.
void ABrokenConnectionEndsItsCallChains() {
  std::mt19937_64 random(26);
  pytriton::ServiceThread services(services_test::Keep);
  services_test::Held held("held");
  services_test::ServiceClient client(&services);
  fake_worker::Worker worker("broken.socket", nullptr);
  pytriton::AdmissionMessage admission;
  admission.socket = "broken.socket";
  admission.batching = true;
  admission.mode = pytriton::ExecutionMode::kConcurrent;
  admission.max_in_flight = 4;
  admission.inputs = {"A"};
  admission.outputs = {"OUT_A"};
  pytriton::AllModelMetrics metrics;
  TRITONBACKEND_ModelInstance instance;
  const pytriton::InstanceContext context = {"client",
                                             pytriton::RequestStatistics(&instance),
                                             pytriton::RequestResponder(""),
                                             std::make_unique<pytriton::WarmupGuard>(0),
                                             metrics.Join("client", 1),
                                             {0}};
  Sent sent({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}, {"OUT_A"});
  sent.request.parameters.push_back({pytriton::kCallersParameter, TRITONSERVER_PARAMETER_STRING, "place 1 1 caller"});
  pytriton::InferenceCallMessage call;
  const auto callers = [&] {
    client.Call("held", "data", call);
    TRITONSERVER_InferenceRequest* request = held.Take();
    const std::string text = request->parameters.at(pytriton::kCallersParameter);
    services_test::Echo(request);
    client.Take();
    return text;
  };
  {
    pytriton::ConcurrentExecutor executor(std::make_shared<pytriton::Connection>(admission),
                                          client.channel()->shared_from_this(), &context);
    TRITONBACKEND_Request* request = &sent.request;
    CHECK(executor.Submit(pytriton::NotificationKind::kBatch, &request, 1));
    call.batch = Next(&worker.worker_end()).sequence;
    CHECK(Contains(callers(), "place 1 1 caller\n"));
    worker.worker_end().HangUp();
    CHECK(WaitUntil([&] { return sent.request.released; }));
  }
  CHECK(sent.failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'client': the worker has gone"));
  CHECK(!Contains(callers(), "caller\n"));
}

const Behaviors kBehaviors = {
    {"bad_requests_take_no_place", BadRequestsTakeNoPlace},
    {"outputs_that_cannot_be_copied_end_the_request", OutputsThatCannotBeCopiedEndTheRequest},
    {"a_worker_that_hangs_up_fails_what_is_in_flight", AWorkerThatHangsUpFailsWhatIsInFlight},
    {"unloading_answers_what_is_in_flight", UnloadingAnswersWhatIsInFlight},
    {"idle_instances_end", IdleInstancesEnd},
    {"nonsense_fails_what_is_in_flight", NonsenseFailsWhatIsInFlight},
    {"results_out_of_turn_fail_what_is_in_flight", ResultsOutOfTurnFailWhatIsInFlight},
    {"a_worker_that_takes_nothing_ends", AWorkerThatTakesNothingEnds},
    {"outputs_that_do_not_fit_their_shape_fail_alone", OutputsThatDoNotFitTheirShapeFailAlone},
    {"a_worker_that_does_not_read_is_served", AWorkerThatDoesNotReadIsServed},
    {"execution_goes_on_after_a_worker_that_does_not_read_hangs_up", ExecutionGoesOnAfterAWorkerThatDoesNotReadHangsUp},
    {"a_broken_connection_ends_its_call_chains", ABrokenConnectionEndsItsCallChains},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
