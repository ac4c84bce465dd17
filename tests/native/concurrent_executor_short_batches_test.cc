// Short batches, which are served one at a time, their results being received by the instance's thread:
// `concurrent_executor_short_batches_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "concurrent_executor_fixture.h"
#include "model_instance/batch_durations.h"

namespace data_path {

namespace {

using fake_worker::Taken;
using fake_worker::WorkerEnd;
using pytriton::BatchDurations;

constexpr int64_t kQuickNs = 100'000;
constexpr int64_t kSlowNs = 5'000'000;

void RecordShortOnes(BatchDurations* durations, bool have_called = false) {
  for (int i = 0; i < 1000; ++i) durations->Record(kQuickNs, 1, have_called);
  CHECK(durations->ShouldWait());
}

void BatchesWaitWhileTheyAreShort() {
  BatchDurations durations;
  CHECK(!durations.ShouldWait());
  RecordShortOnes(&durations);
  for (int i = 0; i < 1000; ++i) {  // a few long ones do not matter
    durations.Record(i % 50 == 0 ? kSlowNs : kQuickNs, 1, false);
    CHECK(durations.ShouldWait());
  }
  for (int i = 0; i < 100; ++i) durations.Record(kSlowNs, 1, false);
  CHECK(!durations.ShouldWait());
}

void LargeBatchesWaitOnlyIfTheyCallOtherModels() {
  BatchDurations durations;
  RecordShortOnes(&durations);
  durations.Record(kQuickNs, 17, false);
  CHECK(!durations.ShouldWait());
  BatchDurations calling;
  RecordShortOnes(&calling, true);
  calling.Record(kQuickNs, 17, true);
  CHECK(calling.ShouldWait());
}

void BatchesThatTakeLongOnceTheyWaitStopWaiting() {
  BatchDurations durations;
  int waited = 0;
  constexpr int kBatches = 20'000;
  for (int i = 0; i < kBatches; ++i) {
    const bool waits = durations.ShouldWait();
    waited += waits ? 1 : 0;
    durations.Record(waits ? kSlowNs : kQuickNs, 1, false);
  }
  CHECK(waited > 0 && waited < kBatches / 100);
}

// Responds to each batch at once, unless it is told what else to do.
class PromptWorker {
 public:
  using Act = std::function<void(WorkerEnd* worker_end, const Taken& taken)>;

  static void Respond(WorkerEnd* worker_end, const Taken& taken) {
    SendResult(worker_end, taken, fake_worker::EchoOf(taken.batch));
    worker_end->Release(taken);
  }

  void Do(Act act) {
    const std::lock_guard<std::mutex> lock(mutex_);
    act_ = std::move(act);
  }
  fake_worker::Session Session() {
    return [this](WorkerEnd* worker_end) {
      while (const auto taken = worker_end->Take()) {
        worker_end->Acknowledge();
        const std::lock_guard<std::mutex> lock(mutex_);
        act_(worker_end, *taken);
      }
    };
  }

 private:
  std::mutex mutex_;
  Act act_ = Respond;
};

class PromptModel : public Model {
 public:
  PromptModel(const std::string& name, PromptWorker* worker) : Model(name, 1, true, ModeOf(), worker->Session()) {
    Load();
  }

  Requests NewBatch() { return BatchOf(Request(&random_)); }
  void ServeOne() { CheckServed(NewBatch()); }
  // Serves batches until this thread receives their results.
  void ServeUntilReceivedHere() {
    const std::thread::id here = std::this_thread::get_id();
    std::atomic<bool> is_here{false};
    fake_triton::SetResponseHook([&] { is_here = std::this_thread::get_id() == here; });
    CHECK(ComesTrue([&] {
      for (int i = 0; i < 10; ++i) ServeOne();
      return is_here.load();
    }));
    fake_triton::SetResponseHook(nullptr);
  }

 private:
  static Mode ModeOf() {
    Mode mode = {8};
    mode.at_doorbell = true;
    return mode;
  }

  std::mt19937_64 random_{41};
};

void TheInstancesThreadReceivesTheirResults() {
  PromptWorker worker;
  PromptModel model("prompt", &worker);
  model.ServeUntilReceivedHere();
}

void ABatchThatIsNotShortDoesNotKeepTheNext() {
  PromptWorker worker;
  PromptModel model("keeping", &worker);
  model.ServeUntilReceivedHere();
  std::vector<Taken> kept;
  worker.Do([&](WorkerEnd* worker_end, const Taken& taken) {
    kept.push_back(taken);
    if (kept.size() < 3) return;
    for (const Taken& each : kept) PromptWorker::Respond(worker_end, each);
  });
  std::vector<Requests> batches;
  for (int i = 0; i < 3; ++i) {
    batches.push_back(model.NewBatch());
    model.Submit(batches.back());
  }
  for (const Requests& batch : batches) {
    Model::Wait(batch);
    Model::CheckEchoed(*batch[0]);
  }
  worker.Do(PromptWorker::Respond);
  model.ServeUntilReceivedHere();
}

void AWorkerThatHangsUpFailsTheBatch() {
  PromptWorker worker;
  PromptModel model("mortal", &worker);
  model.ServeUntilReceivedHere();
  worker.Do([](WorkerEnd* worker_end, const Taken&) { worker_end->HangUp(); });
  auto batch = model.NewBatch();
  model.Execute(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal': the worker has gone"));
  worker.Do(PromptWorker::Respond);
  model.ServeOne();
  CHECK(model.connections() == 2);
}

void AWorkerThatHangsUpBetweenBatchesIsReplaced() {
  PromptWorker worker;
  PromptModel model("between", &worker);
  model.ServeUntilReceivedHere();
  model.worker_end().HangUp();
  CHECK(ComesTrue([&] {
    auto batch = model.NewBatch();  // fails if the instance has not noticed yet
    model.Execute(batch);
    return !batch[0]->request.failed;
  }));
  CHECK(model.connections() == 2);
}

void NonsenseFailsTheBatch() {
  PromptWorker worker;
  PromptModel model("nonsense", &worker);
  model.ServeUntilReceivedHere();
  worker.Do([](WorkerEnd* worker_end, const Taken& taken) {
    pytriton::ResultMessage result = fake_worker::EchoOf(taken.batch);
    result.request_count = 2;
    SendResult(worker_end, taken, result);
  });
  auto batch = model.NewBatch();
  model.Execute(batch);
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "another number of requests"));
  worker.Do(PromptWorker::Respond);
  model.ServeOne();
  CHECK(model.connections() == 2);
}

const Behaviors kBehaviors = {
    {"batches_wait_while_they_are_short", BatchesWaitWhileTheyAreShort},
    {"large_batches_wait_only_if_they_call_other_models", LargeBatchesWaitOnlyIfTheyCallOtherModels},
    {"batches_that_take_long_once_they_wait_stop_waiting", BatchesThatTakeLongOnceTheyWaitStopWaiting},
    {"the_instances_thread_receives_their_results", TheInstancesThreadReceivesTheirResults},
    {"a_batch_that_is_not_short_does_not_keep_the_next", ABatchThatIsNotShortDoesNotKeepTheNext},
    {"a_worker_that_hangs_up_fails_the_batch", AWorkerThatHangsUpFailsTheBatch},
    {"a_worker_that_hangs_up_between_batches_is_replaced", AWorkerThatHangsUpBetweenBatchesIsReplaced},
    {"nonsense_fails_the_batch", NonsenseFailsTheBatch},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
