// Requests of clients that are gone, and of those whose time has passed: `concurrent_executor_cancellation_test
// BEHAVIOR`, or
// `--list`. Its sockets go to the current folder.
#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "concurrent_executor_fixture.h"

namespace data_path {

namespace {

using fake_triton::WaitUntil;
using fake_worker::Reply;
using fake_worker::Taken;
using fake_worker::WorkerEnd;

// Cancels request 1 of three by `cancel`, in mid-stream.
void CheckCancelled(const std::string& name, const std::function<void(TRITONBACKEND_Request*)>& cancel,
                    TRITONSERVER_Error_Code code, const std::string& reason) {
  std::mt19937_64 random(13);
  Model model(name, 1, true, {1, true});
  model.Load();
  WorkerEnd& worker_end = model.worker_end();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  auto next = BatchOf(model.Request(&random));
  cancel(&batch[1]->request);
  std::atomic<int> launched{0};
  std::thread launching([&] {
    for (const Requests* each : {&batch, &next}) {
      model.Submit(*each);
      ++launched;
    }
  });
  const Taken taken = Next(&worker_end);
  CHECK(WaitUntil([&] { return batch[1]->request.released; }));
  CHECK(batch[1]->failed_with(code, "model '" + name + "': " + reason));
  CHECK(ComesTrue([&] { return taken.is_cancelled(1); }));
  CHECK(!taken.is_cancelled(0) && !taken.is_cancelled(2));
  // The batch keeps its place until the worker has ended it; what is said to the request is dropped.
  CHECK(worker_end.Send(Reply().Echo(taken, 1, false).Echo(taken, 0).Echo(taken, 2)));
  CHECK(WaitUntil([&] { return batch[0]->request.released && batch[2]->request.released; }));
  CHECK(!worker_end.Take(kNothingMs));
  CHECK(launched == 0);
  CHECK(worker_end.Send(Reply().End(taken, 1)));
  EchoAll(&worker_end, Next(&worker_end));
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
  model.Submit(batch);
  const Taken taken = Next(&model.worker_end());
  batch[0]->request.cancelled = true;
  // Neither of these is sent, not even the end, until it has been looked for such clients.
  CHECK(model.worker_end().Send(Reply().Echo(taken, 0, false).Echo(taken, 0, false).End(taken, 0).Echo(taken, 1)));
  Model::Wait(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  CHECK(batch[0]->request.responses.empty());
  Model::CheckEchoed(*batch[1]);
  CheckServedNow(&model, &random);
}

void AResultLeavesCancelledRequestsOut() {
  std::mt19937_64 random(19);
  Model model("left-out", 1, true, {4});
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  model.Submit(batch);
  const Taken taken = Next(&model.worker_end());
  batch[0]->request.cancelled = true;
  CHECK(WaitUntil([&] { return batch[0]->request.released; }));
  batch[1]->request.cancelled = true;  // and is still to be noticed
  CHECK(SendResult(&model.worker_end(), taken, fake_worker::EchoOf(taken.batch)));
  Model::Wait(batch);
  for (size_t i : {0, 1}) CHECK(batch[i]->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  Model::CheckEchoed(*batch[2]);
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
  WorkerEnd& worker_end = model.worker_end();
  // A worker lets a batch go when it has read it, which may be long before it has answered.
  auto cancelled = BatchOf(model.Request(&random));
  auto failing = BatchOf(model.Request(&random));
  failing[0]->request.output_memory = TRITONSERVER_MEMORY_GPU;
  for (Requests* gone : {&cancelled, &failing}) {
    model.Submit(*gone);
    const Taken first = Next(&worker_end);
    const Reply said = Reply().Echo(first, 0, false);
    worker_end.Release(first);
    auto later = BatchOf(model.Request(&random));
    model.Submit(later);
    const Taken second = Next(&worker_end);
    CHECK(second.offset == first.offset);
    if (gone == &failing) CHECK(worker_end.Send(said));
    if (gone == &cancelled) (*gone)[0]->request.cancelled = true;
    Model::Wait(*gone);
    CheckServedNow(&model, &random);
    CHECK(!second.is_cancelled(0));
    CHECK(worker_end.Send(Reply().End(first, 0).Echo(second, 0)));
    worker_end.Release(second);
    Model::Wait(later);
    Model::CheckEchoed(*later[0]);
  }
  CHECK(cancelled[0]->request.error_code == TRITONSERVER_ERROR_CANCELLED);
  CHECK(failing[0]->request.error_code == TRITONSERVER_ERROR_INTERNAL);
}

void ASequentialBatchIsNotifiedOfCancelling() {
  std::mt19937_64 random(15);
  Model model("sequential mode", 1, true, [](const pytriton::BatchMessage& batch, const char* data) {
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

const Behaviors kBehaviors = {
    {"a_cancelled_request_is_answered_and_keeps_its_place", ACancelledRequestIsAnsweredAndKeepsItsPlace},
    {"a_request_whose_time_has_passed_is_answered", ARequestWhoseTimeHasPassedIsAnswered},
    {"cancelled_requests_are_not_sought_in_later_batches", CancelledRequestsAreNotSoughtInLaterBatches},
    {"a_sequential_batch_is_notified_of_cancelling", ASequentialBatchIsNotifiedOfCancelling},
    {"a_client_that_has_left_is_sent_one_thing", AClientThatHasLeftIsSentOneThing},
    {"a_result_leaves_cancelled_requests_out", AResultLeavesCancelledRequestsOut},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
