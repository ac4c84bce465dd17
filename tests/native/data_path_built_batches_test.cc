// Batches that an instance builds of the requests which Triton hands over one by one: `data_path_built_batches_test
// BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <chrono>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data_path.h"
#include "model_instance/request_hold.h"
#include "transport/adaptive_spin.h"

namespace {

// What the guard would call when Triton has no more requests.
void (*idle_function)(void*) = nullptr;
void* idle_argument = nullptr;
bool can_call = true;

void LookForMore() {
  if (idle_function != nullptr) std::exchange(idle_function, nullptr)(idle_argument);
}

void BeIdle() {
  while (idle_function != nullptr) LookForMore();
}

// What the guard has been told about requests that arrive.
std::vector<std::string> told;

}  // namespace

bool PYTRITON_CallWhenIdle(void (*function)(void*), void* argument) {
  if (!can_call) return false;
  idle_function = function;
  idle_argument = argument;
  return true;
}

void PYTRITON_HoldRequests() { told.emplace_back("hold"); }
void PYTRITON_ReleaseRequests(bool has_more) { told.emplace_back(has_more ? "release, has more" : "release"); }

namespace data_path {

namespace {

using Counts = std::vector<int64_t>;
using pytriton::AdaptiveSpin;
using pytriton::BusyWorker;
using Told = std::vector<std::string>;

// A model that echoes, and the rows of each request in the batches that it has had.
class BuiltBatches {
 public:
  explicit BuiltBatches(int max_batch_size, bool varies = false)
      : model_("built", 2, true, [this](const auto& batch, const char* data) { return Serve(batch, data); }) {
    model_.BuildBatches(max_batch_size, varies);
    model_.Load();
  }

  // The server hands over a request, with a second input like the first if `has_second`.
  Sent* Send(const std::vector<int64_t>& shape, bool has_second = false) {
    std::vector<TRITONBACKEND_Input> inputs = {Numbers("A", TRITONSERVER_TYPE_FP32, shape, &random_)};
    if (has_second) inputs.push_back(Numbers("B", TRITONSERVER_TYPE_FP32, shape, &random_));
    requests_.push_back(model_.Request(std::move(inputs)));
    TRITONBACKEND_Request* request = &requests_.back()->request;
    CHECK(TRITONBACKEND_ModelInstanceExecute(model_.instance(), &request, 1) == nullptr);
    return requests_.back().get();
  }

  void CheckAllEchoed() const {
    Model::Wait(requests_);
    for (const auto& sent : requests_) Model::CheckEchoed(*sent);
  }

  std::vector<Counts> batches() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  void SetDuration(std::chrono::milliseconds duration) { duration_ = duration; }
  const Requests& requests() const { return requests_; }
  Model& model() { return model_; }

 private:
  fake_worker::Served Serve(const pytriton::BatchMessage& batch, const char* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    batches_.push_back(batch.rows);
    std::this_thread::sleep_for(duration_);
    return fake_worker::Echo(batch, data);
  }

  std::mt19937_64 random_{1};
  std::mutex mutex_;
  std::vector<Counts> batches_;
  std::chrono::milliseconds duration_{0};
  Requests requests_;
  Model model_;
};

void RequestsBecomeABatchWhenTheServerHasNoMore() {
  BuiltBatches built(8);
  for (int64_t rows : {1, 3, 2}) built.Send({rows, 3});
  CHECK(built.batches().empty());
  BeIdle();
  built.CheckAllEchoed();
  built.Send({1, 3});
  BeIdle();
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{1, 3, 2}, {1}}));
}

void AnInstanceLooksForMoreOnceIfTheLastBatchWasLarger() {
  BuiltBatches built(8);
  for (int i = 0; i < 3; ++i) built.Send({1, 3});
  LookForMore();
  built.Send({1, 3});
  LookForMore();
  CHECK(built.batches().size() == 1);
  built.Send({1, 3});
  LookForMore();
  CHECK(built.batches().size() == 2);
  for (int i = 0; i < 2; ++i) built.Send({1, 3});
  LookForMore();
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{1, 1, 1}, {1, 1}, {1, 1}}));
}

void AFullBatchIsExecutedAtOnce() {
  BuiltBatches built(4);
  built.Send({1, 3});
  built.Send({3, 3});
  CHECK(Model::IsDone(built.requests()));
  built.Send({4, 3});
  built.CheckAllEchoed();
  BeIdle();
  CHECK((built.batches() == std::vector<Counts>{{1, 3}, {4}}));
}

void ARequestWithTooManyRowsBeginsAnotherBatch() {
  BuiltBatches built(4);
  built.Send({3, 3});
  CHECK(built.batches().empty());
  built.Send({2, 3});
  CHECK((built.batches() == std::vector<Counts>{{3}}));
  built.Send({1, 3});
  BeIdle();
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{3}, {2, 1}}));
}

void ARequestWithOtherShapesBeginsAnotherBatch() {
  BuiltBatches built(8, true);
  for (int64_t size : {3, 3, 5, 5, 3}) built.Send({1, size});
  BeIdle();
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{1, 1}, {1, 1}, {1}}));
}

void ARequestWithOtherInputsBeginsAnotherBatch() {
  BuiltBatches built(8, true);
  built.Send({1, 3});
  built.Send({1, 3}, true);
  built.Send({2, 3}, true);
  built.Send({1, 3});
  BeIdle();
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{1}, {1, 2}, {1}}));
}

void RequestsOfClientsThatHaveGoneAreLeftOut() {
  BuiltBatches built(8);
  built.Send({1, 3});
  Sent* const gone = built.Send({2, 3});
  built.Send({3, 3});
  gone->request.cancelled = true;
  BeIdle();
  CHECK(Model::IsDone(built.requests()));
  CHECK(gone->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  CHECK((built.batches() == std::vector<Counts>{{1, 3}}));

  Sent* const traced = built.Send({1, 3});
  traced->request.cancelled = traced->request.with_traced = true;
  traced->request.trace = 7;
  BeIdle();
  CHECK(Model::IsDone(built.requests()));
  CHECK(traced->failed_with(TRITONSERVER_ERROR_CANCELLED, "was cancelled"));
  CHECK(built.batches().size() == 1);
}

void AnInstanceLooksForTheNextRequestForAWhile() {
  if (!AdaptiveSpin::IsAllowed()) return;
  BuiltBatches built(8);
  // Not before it has learned that requests come soon, and not for a while if other programs keep the processors.
  for (int i = 0; i < 5000 && idle_function == nullptr; ++i) {
    built.Send({1, 3});
    LookForMore();
  }
  CHECK(idle_function != nullptr);
  const size_t count = built.batches().size();
  built.Send({1, 3});
  LookForMore();
  CHECK(built.batches().size() == count + 1);
  BeIdle();
  built.CheckAllEchoed();
  CHECK(built.batches().size() == count + 1);
}

void ThreadsDoNotSpinForRequestsWhileWorkersNeedTheProcessors() {
  if (!AdaptiveSpin::IsAllowed()) return;
  AdaptiveSpin spin(AdaptiveSpin::For::kRequest);
  for (int i = 0; i < 500; ++i) spin.RecordWait(1000);
  CHECK(spin.Begin());
  spin.End(true);
  {
    const std::vector<BusyWorker> busy(std::thread::hardware_concurrency());
    CHECK(!spin.Begin());
  }
  CHECK(spin.Begin());
  const std::vector<BusyWorker> busy(std::thread::hardware_concurrency());
  CHECK(!spin.GoOn());
  spin.End(false);
}

// A second instance of a model.
class OtherInstance {
 public:
  explicit OtherInstance(Model* model) {
    instance_.name = "built_1";
    instance_.model = model->instance()->model;
    CHECK(TRITONBACKEND_ModelInstanceInitialize(&instance_) == nullptr);
  }
  ~OtherInstance() { CHECK(TRITONBACKEND_ModelInstanceFinalize(&instance_) == nullptr); }
  OtherInstance(const OtherInstance&) = delete;
  OtherInstance& operator=(const OtherInstance&) = delete;

 private:
  TRITONBACKEND_ModelInstance instance_;
};

void OneOfSeveralInstancesHoldsRequestsDuringAShortBatch() {
  BuiltBatches built(8);
  built.Send({1, 3});
  BeIdle();
  CHECK(told.empty());

  const OtherInstance other(&built.model());
  built.Send({1, 3});
  BeIdle();
  CHECK(!told.empty() && told[0] == "hold");
  built.CheckAllEchoed();
}

void RequestsAreReleasedOnceABatchTakesLong() {
  BuiltBatches built(8);
  const OtherInstance other(&built.model());
  built.SetDuration(std::chrono::milliseconds(20));
  built.Send({1, 3});
  BeIdle();
  CHECK((told == Told{"hold", "release"}));
  built.CheckAllEchoed();
}

void AFullBatchLeavesRequestsToOtherInstances() {
  BuiltBatches built(4);
  const OtherInstance other(&built.model());
  built.Send({4, 3});
  CHECK((told == Told{"release, has more"}));
  built.Send({3, 3});
  built.Send({2, 3});
  CHECK((told == Told{"release, has more", "release, has more"}));
  BeIdle();
  built.CheckAllEchoed();
}

void ABatchThatTakesLongToCopyHoldsNoRequests() {
  BuiltBatches built(8, true);
  const OtherInstance other(&built.model());
  built.Send({1, 100'000});
  BeIdle();
  CHECK((told == Told{"hold", "release"}));
  built.CheckAllEchoed();
}

void RequestsAreReleasedBeforeAnInstanceWaitsForItsWorker() {
  BuiltBatches built(8);
  const OtherInstance other(&built.model());
  built.model().Unbind();
  const Sent* const sent = built.Send({1, 3});
  BeIdle();
  CHECK((told == Told{"hold", "release"}));
  CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "has no worker"));
}

void FunctionsThatTakeLongHoldNoRequests() {
  pytriton::RequestHold hold;
  for (int i = 0; i < 20; ++i) hold.Record(1'000'000);
  hold.Begin(false);
  CHECK(told.empty());
  CHECK(hold.EndIfOver() == 0);
  for (int i = 0; i < 100; ++i) hold.Record(10'000);
  hold.Begin(false);
  CHECK((told == Told{"hold"}));
  CHECK(hold.EndIfOver() > 0);
  CHECK(ComesTrue([&] { return hold.EndIfOver() == 0; }));
  hold.Begin(false);
  for (int i = 0; i < 20; ++i) hold.Record(1'000'000);
  hold.Begin(false);
  hold.End();
  CHECK((told == Told{"hold", "release", "hold", "release"}));
}

void AnInstanceThatIsRemovedExecutesItsLastBatch() {
  BuiltBatches built(8);
  built.Send({1, 3});
  built.Send({1, 3});
  built.model().Unload();
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{1, 1}}));
}

void EachRequestIsABatchWhereTheGuardCannotCall() {
  can_call = false;
  BuiltBatches built(8);
  built.Send({1, 3});
  built.Send({2, 3});
  built.CheckAllEchoed();
  CHECK((built.batches() == std::vector<Counts>{{1}, {2}}));
}

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) {
  using namespace data_path;  // NOLINT: the behaviors of this file
  return Run(
      {
          {"requests_become_a_batch_when_the_server_has_no_more", RequestsBecomeABatchWhenTheServerHasNoMore},
          {"an_instance_looks_for_more_once_if_the_last_batch_was_larger",
           AnInstanceLooksForMoreOnceIfTheLastBatchWasLarger},
          {"a_full_batch_is_executed_at_once", AFullBatchIsExecutedAtOnce},
          {"a_request_with_too_many_rows_begins_another_batch", ARequestWithTooManyRowsBeginsAnotherBatch},
          {"a_request_with_other_shapes_begins_another_batch", ARequestWithOtherShapesBeginsAnotherBatch},
          {"a_request_with_other_inputs_begins_another_batch", ARequestWithOtherInputsBeginsAnotherBatch},
          {"requests_of_clients_that_have_gone_are_left_out", RequestsOfClientsThatHaveGoneAreLeftOut},
          {"an_instance_looks_for_the_next_request_for_a_while", AnInstanceLooksForTheNextRequestForAWhile},
          {"threads_do_not_spin_for_requests_while_workers_need_the_processors",
           ThreadsDoNotSpinForRequestsWhileWorkersNeedTheProcessors},
          {"one_of_several_instances_holds_requests_during_a_short_batch",
           OneOfSeveralInstancesHoldsRequestsDuringAShortBatch},
          {"requests_are_released_once_a_batch_takes_long", RequestsAreReleasedOnceABatchTakesLong},
          {"a_full_batch_leaves_requests_to_other_instances", AFullBatchLeavesRequestsToOtherInstances},
          {"a_batch_that_takes_long_to_copy_holds_no_requests", ABatchThatTakesLongToCopyHoldsNoRequests},
          {"requests_are_released_before_an_instance_waits_for_its_worker",
           RequestsAreReleasedBeforeAnInstanceWaitsForItsWorker},
          {"functions_that_take_long_hold_no_requests", FunctionsThatTakeLongHoldNoRequests},
          {"an_instance_that_is_removed_executes_its_last_batch", AnInstanceThatIsRemovedExecutesItsLastBatch},
          {"each_request_is_a_batch_where_the_guard_cannot_call", EachRequestIsABatchWhereTheGuardCannotCall},
      },
      argc, argv);
}
