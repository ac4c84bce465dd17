// Batches for a worker in lock-step that sleeps at a doorbell in shared memory:
// `data_path_doorbell_test BEHAVIOUR`, or `--list`. Its sockets go to the current folder.
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "data_path.h"
#include "transport/adaptive_spin.h"

namespace data_path {

namespace {

using fake_worker::Echo;
using fake_worker::ResponseEntry;
using pytriton::BatchMessage;

constexpr int64_t kLarge = 1 << 14;  // float32 values, whose head is rung for before they are copied

Model AtDoorbell(const std::string& name, fake_worker::Serve serve, size_t kept = 0) {
  Mode mode;
  mode.at_doorbell = true;
  return Model(name, 1, true, mode, fake_worker::LockStep(std::move(serve), kept));
}

void SmallBatchesAreRungForOnce() {
  std::mt19937_64 random(1);
  Model model = AtDoorbell("small", Echo);
  model.Load();
  for (int i = 0; i < 20; ++i) model.CheckServed(BatchOf(model.Request(&random), model.Request(&random)));
  CHECK(model.desk().heads() == 0);
}

void LargeBatchesAreRungForByTheirHeads() {
  constexpr int kBatches = 20;
  std::mt19937_64 random(2);
  Model model = AtDoorbell("large", Echo);
  model.Load();
  for (int i = 0; i < kBatches; ++i) {
    model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, kLarge}, &random)}),
                              model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {3, kLarge}, &random)})));
  }
  CHECK(model.desk().heads() == (pytriton::AdaptiveSpin::IsAllowed() ? kBatches : 0));
}

void ManyRequestsAreRungForOnceAndSoIsWhatComesNext() {
  constexpr int kBacklogBatches = 32;
  std::mt19937_64 random(5);
  Model model = AtDoorbell("many", Echo);
  model.Load();
  const auto request = [&] { return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, kLarge}, &random)}); };
  for (int i = 0; i < 20; ++i) model.CheckServed(BatchOf(request(), request(), request()));
  for (int i = 1; i < kBacklogBatches; ++i) model.CheckServed(BatchOf(request(), request()));
  CHECK(model.desk().heads() == 0);
  model.CheckServed(BatchOf(request(), request()));
  CHECK(model.desk().heads() == (pytriton::AdaptiveSpin::IsAllowed() ? 1 : 0));
}

void BatchesOfAnySizeComeBack() {
  std::mt19937_64 random(3);
  Model model = AtDoorbell("any", Echo, 3);
  model.Load();
  for (int i = 0; i < 200; ++i) {
    const auto size = static_cast<int64_t>(random() % (2 * kLarge));
    model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, size}, &random)})));
  }
}

void AWorkerThatHangsUpIsReplaced() {
  std::mt19937_64 random(4);
  int batches = 0;
  Model model = AtDoorbell("mortal", [&](const BatchMessage& batch, const char* data) {
    if (++batches % 2 == 1) return ResponseEntry{"", {}, true};
    return Echo(batch, data);
  });
  model.Load();
  for (const int64_t size : {int64_t{3}, kLarge}) {
    auto lost = BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, size}, &random)}));
    model.Execute(lost);
    CHECK(lost[0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal': "));
    model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, size}, &random)})));
  }
  CHECK(model.connections() == 3);
}

const Behaviours kBehaviours = {
    {"small_batches_are_rung_for_once", SmallBatchesAreRungForOnce},
    {"large_batches_are_rung_for_by_their_heads", LargeBatchesAreRungForByTheirHeads},
    {"many_requests_are_rung_for_once_and_so_is_what_comes_next", ManyRequestsAreRungForOnceAndSoIsWhatComesNext},
    {"batches_of_any_size_come_back", BatchesOfAnySizeComeBack},
    {"a_worker_that_hangs_up_is_replaced", AWorkerThatHangsUpIsReplaced},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviours, argc, argv); }
