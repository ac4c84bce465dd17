// Tensors in the memory of a GPU, in sequential mode: `data_path_gpu_test BEHAVIOR`, or `--list`. The driver is that
// of `fake_cuda.cc`.
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "data_path.h"

extern "C" void fake_cuda_open_own();

namespace data_path {

namespace {

using fake_worker::DataOf;
using fake_worker::Echo;
using fake_worker::Served;
using fake_worker::Whole;
using pytriton::BatchMessage;
using pytriton::DeviceLocation;
using pytriton::ResultMessage;
using pytriton::TensorColumn;

void MoveToGpu(Sent* sent) {
  for (TRITONBACKEND_Input& input : sent->request.inputs) {
    for (TRITONBACKEND_Input::Buffer& buffer : input.buffers) buffer.type = TRITONSERVER_MEMORY_GPU;
  }
}

void InputsInTheMemoryOfAGpuAreCopied() {
  std::mt19937_64 random(30);
  Model model("copied", 2, true, Echo);
  model.Load();
  for (int round = 0; round < 20; ++round) {
    Requests batch;
    for (int i = 0; i < 4; ++i) {
      const auto dim = static_cast<int64_t>(1 + round % 3);
      batch.push_back(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, dim * 1000}, &random),
                                     Bytes("B", {2, 2}, {"a", "", std::string(i * 500, 'c'), "d"})}));
      if (i % 2 == 0) batch.back()->request.inputs[0].Split({4000, 0});
      if (i % 3 != 2) MoveToGpu(batch.back().get());
    }
    model.CheckServed(batch);
  }
}

void OutputsAreCopiedIntoTheMemoryOfAGpu() {
  std::mt19937_64 random(31);
  Model model("wanted", 2, true, Echo);
  model.Load();
  Requests batch;
  for (int i = 0; i < 4; ++i) {
    batch.push_back(
        model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 1000}, &random), Bytes("B", {1, 2}, {"one", "two"})}));
    if (i % 2 == 0) batch.back()->request.output_memory = TRITONSERVER_MEMORY_GPU;
  }
  model.CheckServed(batch);
}

// Reads the tensors of a batch that lie on the GPU, and responds with the same, in memory of the worker's.
class GpuWorker {
 public:
  Served Serve(const BatchMessage& batch, const char* data) {
    ResultMessage result;
    result.request_count = batch.request_count;
    std::string tensors;
    for (const TensorColumn& column : batch.columns) {
      CHECK(column.place == pytriton::Place::kOnDevice);
      DeviceLocation location;
      std::memcpy(&location, data + column.tensors[0].offset, sizeof(location));
      const int64_t size = column.tensors[0].size;
      const pytriton::cuda::PeerMemory peer(location.handle, location.gpu);
      memories_.push_back(std::make_unique<pytriton::cuda::Memory>(size, peer.device()));
      pytriton::cuda::Copy(memories_.back()->data(), peer.At(location.offset, size), size, peer.device());
      TensorColumn echo = column;
      echo.tensors[0].offset = static_cast<int64_t>(tensors.size());
      result.columns.push_back(echo);
      tensors.resize(tensors.size() + pytriton::Aligned(sizeof(location)));
      pytriton::WriteLocation(*memories_.back(), tensors.data() + echo.tensors[0].offset);
      ++count_;
    }
    CHECK(batch.wants_gpu == wants_gpu_);
    return {Whole(result, tensors), {}};
  }

  void Expect(bool wants_gpu) { wants_gpu_ = wants_gpu; }
  int count() const { return count_; }

 private:
  std::vector<std::unique_ptr<pytriton::cuda::Memory>> memories_;
  bool wants_gpu_ = false;
  int count_ = 0;
};

void TensorsStayOnTheirGpu() {
  std::mt19937_64 random(32);
  fake_cuda_open_own();
  GpuWorker worker;
  Model model("kept", 2, true, [&](const BatchMessage& batch, const char* data) { return worker.Serve(batch, data); });
  model.TakeGpuTensors();
  model.Load();
  for (const bool wanted : {false, true, false}) {
    worker.Expect(wanted);
    Requests batch;
    for (int i = 0; i < 3; ++i) {
      batch.push_back(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1 + i, 1000}, &random),
                                     Numbers("B", TRITONSERVER_TYPE_INT8, {1 + i, 3}, &random)}));
      if (i != 1) MoveToGpu(batch.back().get());  // the other one is copied there
      if (wanted && i == 2) batch.back()->request.output_memory = TRITONSERVER_MEMORY_GPU;
    }
    model.CheckServed(batch);
  }
  CHECK(worker.count() == 6);
}

void OutputsThatCannotBeOpenedFailTheirBatch() {
  std::mt19937_64 random(33);
  fake_cuda_open_own();
  GpuWorker worker;
  bool spoils = false;
  Model model("spoilt", 1, true, [&](const BatchMessage& batch, const char* data) {
    Served served = worker.Serve(batch, data);
    const size_t handle = served.message.size() - pytriton::Aligned(sizeof(DeviceLocation));
    if (spoils) std::memset(served.message.data() + handle, -1, sizeof(pytriton::cuda::IpcHandle));
    return served;
  });
  model.TakeGpuTensors();
  model.Load();
  for (const bool spoilt : {false, true, true, false}) {
    spoils = spoilt;
    auto batch = BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 1000}, &random)}),
                         model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 1000}, &random)}));
    for (auto& each : batch) MoveToGpu(each.get());
    if (!spoilt) {
      model.CheckServed(batch);
      continue;
    }
    model.Execute(batch);
    for (const auto& each : batch) {
      CHECK(each->failed_with(TRITONSERVER_ERROR_INTERNAL, "cannot open memory of a GPU"));
    }
  }
  CHECK(model.connections() == 1 && model.worker_end().arena().in_use() == 0);
}

const Behaviors kBehaviors = {
    {"inputs_in_the_memory_of_a_gpu_are_copied", InputsInTheMemoryOfAGpuAreCopied},
    {"outputs_are_copied_into_the_memory_of_a_gpu", OutputsAreCopiedIntoTheMemoryOfAGpu},
    {"tensors_stay_on_their_gpu", TensorsStayOnTheirGpu},
    {"outputs_that_cannot_be_opened_fail_their_batch", OutputsThatCannotBeOpenedFailTheirBatch},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
