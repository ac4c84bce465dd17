// Batches for a worker in sequential mode that sleeps at a doorbell in shared memory:
// `data_path_doorbell_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "data_path.h"

namespace data_path {

namespace {

using fake_worker::Echo;
using fake_worker::Served;
using pytriton::BatchMessage;

constexpr int64_t kLarge = 1 << 14;  // float32 values

Model OnDoorbell(const std::string& name, fake_worker::Serve serve, size_t kept = 0) {
  Mode mode;
  mode.at_doorbell = true;
  return Model(name, 1, true, mode, fake_worker::Sequential(std::move(serve), kept));
}

void BatchesOfAnySizeComeBack() {
  std::mt19937_64 random(3);
  Model model = OnDoorbell("any", Echo, 3);
  model.Load();
  for (int i = 0; i < 200; ++i) {
    const auto size = static_cast<int64_t>(random() % (2 * kLarge));
    model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, size}, &random)})));
  }
}

void AWorkerThatHangsUpIsReplaced() {
  std::mt19937_64 random(4);
  int batches = 0;
  Model model = OnDoorbell("mortal", [&](const BatchMessage& batch, const char* data) {
    if (++batches % 2 == 1) return Served{"", {}, true};
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

const Behaviors kBehaviors = {
    {"batches_of_any_size_come_back", BatchesOfAnySizeComeBack},
    {"a_worker_that_hangs_up_is_replaced", AWorkerThatHangsUpIsReplaced},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
