// What the tests of the data path share: requests, models that are served by fake workers, and the running of
// behaviors.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_triton.h"
#include "fake_worker.h"
#include "model_instance/instance.h"

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                               \
    }                                                                              \
  } while (false)

namespace data_path {

using Behaviors = std::vector<std::pair<std::string, void (*)()>>;

// Runs the behavior that is named, or prints all names with `--list`. Returns what `main` does.
int Run(const Behaviors& behaviors, int argc, char** argv);

bool Contains(const std::string& text, const std::string& part);

// Waits until a condition holds. Returns whether it did soon.
bool ComesTrue(const std::function<bool()>& condition);

using Strings = std::vector<std::string>;

// A BYTES tensor as clients send it.
std::string Serialized(const Strings& strings);

std::string Noise(int64_t size, std::mt19937_64* random);

TRITONBACKEND_Input Numbers(const std::string& name, TRITONSERVER_DataType datatype, std::vector<int64_t> shape,
                            std::mt19937_64* random);
TRITONBACKEND_Input Bytes(const std::string& name, std::vector<int64_t> shape, const Strings& strings);

// A request, and what it brought: the server's copy goes when the request is released.
struct Sent {
  Sent(std::vector<TRITONBACKEND_Input> inputs, Strings outputs) : inputs(inputs) {
    request.inputs = std::move(inputs);
    request.requested_outputs = std::move(outputs);
  }

  bool failed_with(TRITONSERVER_Error_Code code, const std::string& part) const {
    return request.failed && request.error_code == code && Contains(request.error, part);
  }

  const std::vector<TRITONBACKEND_Input> inputs;
  TRITONBACKEND_Request request;
};

using Requests = std::vector<std::unique_ptr<Sent>>;

template <typename... Each>
Requests BatchOf(Each... each) {
  Requests batch;
  (batch.push_back(std::move(each)), ...);
  return batch;
}

// How a worker takes batches.
struct Mode {
  int64_t max_in_flight = 0;  // 0 is sequential mode
  bool decoupled = false;
  bool deferred = false;
  bool at_doorbell = false;  // where batches are taken, or in concurrent mode acknowledged
};

// A model that is served by a worker. Its inputs are A, B, ..., its outputs OUT_A, OUT_B, ...
class Model {
 public:
  Model(const std::string& name, int tensor_count, bool batching, fake_worker::Serve serve, size_t kept = 0)
      : Model(name, tensor_count, batching, Mode(), fake_worker::Sequential(std::move(serve), kept)) {}
  // Without a session, a test finds what its batches come to at `worker_end`.
  Model(const std::string& name, int tensor_count, bool batching, Mode mode, fake_worker::Session session = nullptr);
  ~Model();

  // A worker in a process of its own has been started again so often.
  void Bind(std::optional<int64_t> restart_count = std::nullopt);
  // From now on, the registry says that the worker's process is being started again.
  void EndProcess(const std::string& reason);
  void Unbind();
  // The worker takes tensors in the memory of GPUs; before it is loaded.
  void TakeGpuTensors();

  // The backend builds the batches; before it is loaded. The shapes of input A vary if `varies`.
  void BuildBatches(int max_batch_size, bool varies = false);

  // As the server does it.
  void Load();
  void Unload();

  // Hands a batch over. In sequential mode, it is answered then.
  void Submit(const Requests& batch);
  void Execute(const Requests& batch);

  // Waits until all requests of the batch are answered and released.
  static void Wait(const Requests& batch);
  static bool IsDone(const Requests& batch);
  // The outputs that the request wants are its inputs, as far as it has them, in as many responses.
  static void CheckEchoed(const Sent& sent, size_t times = 1);
  // Executes the batch, whose requests all succeed.
  void CheckServed(const Requests& batch);

  std::unique_ptr<Sent> Request(std::vector<TRITONBACKEND_Input> inputs) const;
  // A request with one small tensor.
  std::unique_ptr<Sent> Request(std::mt19937_64* random) const;

  TRITONBACKEND_ModelInstance* instance() { return &instance_; }
  fake_worker::Worker& worker() { return *worker_; }
  fake_worker::WorkerEnd& worker_end() { return worker_->worker_end(); }
  int64_t connections() const { return worker_->connections(); }

 private:
  const fake_worker::Session session_;
  const bool at_doorbell_;
  pytriton::AdmissionMessage admission_;
  TRITONBACKEND_Backend backend_;
  TRITONBACKEND_Model model_;
  TRITONBACKEND_ModelInstance instance_;
  std::unique_ptr<fake_worker::Worker> worker_;
};

// A request of a random kind to a model of three inputs, and whether it can be served.
std::pair<std::unique_ptr<Sent>, bool> RandomRequest(const Model& model, std::mt19937_64* random);

// Trims arenas all the time, far more often than the maintenance thread does.
class Trimmer {
 public:
  ~Trimmer() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    batches_.notify_one();
    thread_.join();
  }

  void Watch(const std::shared_ptr<pytriton::Arena>& arena) {
    const std::lock_guard<std::mutex> lock(mutex_);
    arenas_.push_back(arena);
  }

  void Batch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++count_;
    }
    batches_.notify_one();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t seen = 0;; seen = count_) {
      batches_.wait(lock, [&] { return done_ || count_ > seen; });
      if (done_) return;
      const auto arenas = arenas_;
      lock.unlock();
      for (const auto& weak : arenas) {
        if (const auto arena = weak.lock()) arena->Trim(pytriton::Arena::Clock::time_point::max());
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable batches_;
  std::vector<std::weak_ptr<pytriton::Arena>> arenas_;
  int64_t count_ = 0;
  bool done_ = false;
  std::thread thread_{[this] { Run(); }};
};

}  // namespace data_path
