// Many batches at workers in sequential mode, whose memory is kept, trimmed and mutated:
// `data_path_stress_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data_path.h"

namespace data_path {

namespace {

using fake_worker::Echo;
using fake_worker::Served;
using pytriton::BatchMessage;

void MutatedAnswersNeverCrash() {
  std::mt19937_64 random(13);
  int64_t failed = 0;
  Model model("mutated", 3, true, [&](const BatchMessage& batch, const char* data) {
    std::string message = Echo(batch, data).message;
    const int64_t kWords[] = {
        0, 1, -1, 2, 3, 64, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 13, 11, 1 << 20};
    const int changes = 1 + static_cast<int>(random() % 2);
    for (int i = 0; i < changes; ++i) {
      const int64_t word = random() % 4 == 0 ? static_cast<int64_t>(random()) : kWords[random() % std::size(kWords)];
      std::memcpy(message.data() + random() % (message.size() / 8) * 8, &word, 8);
    }
    if (random() % 16 == 0) message.resize(random() % message.size());
    return Served{message, {}};
  });
  model.Load();
  const auto request = [&](int64_t dim) {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {1, 2}, &random), Bytes("B", {1, 2}, {"first", "2nd"}),
                          Numbers("C", TRITONSERVER_TYPE_UINT8, {1, dim}, &random)});
  };
  constexpr int kBatches = 400;
  for (int i = 0; i < kBatches; ++i) {
    auto batch = BatchOf(request(1), request(1 + i % 2), request(1));
    model.Execute(batch);
    failed += batch[0]->request.failed ? 1 : 0;
  }
  CHECK(failed > kBatches / 10 && failed < kBatches);
}

void KeptBatchesStayAsTheyAre() {
  std::mt19937_64 random(15);
  Model model("kept", 2, true, Echo, 20);
  model.Load();
  for (int i = 0; i < 200; ++i) {
    const auto size = static_cast<int64_t>(random() % 5000);
    model.CheckServed(BatchOf(
        model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {1, size}, &random), Bytes("B", {1, 1}, {"a"})}),
        model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {2, size}, &random), Bytes("B", {2, 1}, {"b", "c"})})));
  }
}

void ResultsStayUntilTheyAreAnswered() {
  std::mt19937_64 random(16);
  Model model("result", 1, true, Echo);
  model.Load();
  fake_triton::SetResponseHook([&] { model.worker().Trim(); });
  for (int i = 0; i < 10; ++i) {
    model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {1, 5000}, &random)}),
                              model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {2, 5000}, &random)})));
  }
  fake_triton::SetResponseHook(nullptr);
}

void InstancesRunSideBySide() {
  constexpr int kInstances = 4;
  constexpr int kBatches = 300;
  Trimmer trimmer;
  pytriton::AllModelMetrics metrics;
  pytriton::ServiceThread services([](const auto&) {});
  std::atomic<int64_t> served{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kInstances; ++number) {
    threads.emplace_back([&trimmer, &metrics, &services, &served, number] {
      std::mt19937_64 random(100 + number);
      int64_t batches = 0;
      Model model(
          "instance-" + std::to_string(number), 3, true,
          [&](const BatchMessage& batch, const char* data) {
            if (++batches % 50 == 0) return Served{"", {}, true};
            return Echo(batch, data);
          },
          number * 2);
      pytriton::WorkerPool workers;
      std::atomic<int> instance_count{0};
      pytriton::Instance instance(
          model.instance(), [&trimmer](const auto& arena, const auto&) { trimmer.Watch(arena); }, &services, &metrics,
          &workers, &instance_count);
      for (int i = 0; i < kBatches; ++i) {
        Requests batch;
        std::vector<TRITONBACKEND_Request*> requests;
        std::vector<bool> good;
        for (uint64_t n = 0; n <= random() % 6; ++n) {
          auto [sent, is_good] = RandomRequest(model, &random);
          requests.push_back(&sent->request);
          good.push_back(is_good);
          batch.push_back(std::move(sent));
        }
        instance.Execute(requests.data(), static_cast<uint32_t>(requests.size()));
        trimmer.Batch();
        CHECK(Model::IsDone(batch));
        for (size_t n = 0; n < batch.size(); ++n) {
          if (Contains(batch[n]->request.error, "gone")) continue;  // the worker hung up
          CHECK(batch[n]->request.failed == !good[n]);
          if (!good[n]) continue;
          model.CheckEchoed(*batch[n]);
          ++served;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(served > kInstances * kBatches);
}

// Each instance uses whichever worker of the model was busy last, and none is used by two at a time. Workers hang up
// now and then, and instances come and go.
void InstancesShareTheirWorkers() {
  constexpr int kInstances = 4;
  constexpr int kLives = 4;
  constexpr int kBatches = 75;  // in each
  Trimmer trimmer;
  pytriton::AllModelMetrics metrics;
  pytriton::ServiceThread services([](const auto&) {});
  pytriton::WorkerPool workers;
  std::atomic<int> instance_count{0};
  std::atomic<int64_t> batches{0};
  std::atomic<int64_t> served{0};
  Model model("shared", 3, true, [&](const BatchMessage& batch, const char* data) {
    if (++batches % 50 == 0) return Served{"", {}, true};
    return Echo(batch, data);
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < kInstances; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(200 + number);
      TRITONBACKEND_ModelInstance triton = *model.instance();
      triton.name = "shared_" + std::to_string(number);
      for (int life = 0; life < kLives; ++life) {
        pytriton::Instance instance(
            &triton, [&trimmer](const auto& arena, const auto&) { trimmer.Watch(arena); }, &services, &metrics,
            &workers, &instance_count);
        for (int i = 0; i < kBatches; ++i) {
          auto [sent, is_good] = RandomRequest(model, &random);
          TRITONBACKEND_Request* request = &sent->request;
          instance.Execute(&request, 1);
          Requests batch = BatchOf(std::move(sent));
          CHECK(Model::IsDone(batch));
          if (Contains(batch[0]->request.error, "gone")) continue;  // the worker hung up
          CHECK(batch[0]->request.failed == !is_good);
          if (!is_good) continue;
          model.CheckEchoed(*batch[0]);
          ++served;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(served > kInstances * kLives * kBatches / 2);
}

const Behaviors kBehaviors = {
    {"mutated_answers_never_crash", MutatedAnswersNeverCrash},
    {"kept_batches_stay_as_they_are", KeptBatchesStayAsTheyAre},
    {"results_stay_until_they_are_answered", ResultsStayUntilTheyAreAnswered},
    {"instances_run_side_by_side", InstancesRunSideBySide},
    {"instances_share_their_workers", InstancesShareTheirWorkers},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
