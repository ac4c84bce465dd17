// The guard's half of batching under stress: a queue with a batcher and instances as Triton's core has them, with and
// without batches made in advance, or without a batcher and with instances that build their batches, and clients that
// wait for their responses. Models come and go. Prints how many batches began late, with an idle instance at hand, how
// often the batcher went to sleep per batch, and how many requests a batch had that an instance has built.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "guard/interpose.h"
#include "triton/api.h"

namespace pytriton::guard {

void* NextDefinition(const char* name) { return dlsym(RTLD_NEXT, name); }

bool IsInProgram(const void*) { return false; }

}  // namespace pytriton::guard

namespace {

using Lock = std::unique_lock<std::mutex>;

constexpr std::chrono::milliseconds kBatchersWait(500);
constexpr size_t kMaxBatchSize = 8;
constexpr int kClients = 2;
constexpr int kModels = 9;  // of each kind
constexpr int kRounds = 300;
constexpr int kSlowRounds = 10;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLate(250);

std::atomic<int64_t> batches = 0;
std::atomic<int64_t> late = 0;
std::atomic<int64_t> sleeps = 0;
std::atomic<int64_t> built_batches = 0;
std::atomic<int64_t> built_requests = 0;

struct Request {
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  Clock::time_point sent = Clock::now();

  void Finish() {
    const Lock lock(mutex);
    is_done = true;
    done.notify_one();
  }
  void Wait() {
    Lock lock(mutex);
    done.wait(lock, [this] { return is_done; });
  }
};

using Batch = std::vector<Request*>;

// The batches that are ready for the instances.
struct Payloads {
  std::mutex mutex;
  std::condition_variable come;
  std::deque<Batch> queue;
  int idle = 0;
  bool is_closed = false;
};

class Model {
 public:
  Model(int instance_count, bool makes_in_advance, bool is_slow)
      : instance_count_(instance_count),
        makes_in_advance_(makes_in_advance),
        is_slow_(is_slow),
        batcher_([this] { MakeBatches(); }) {
    for (int i = 0; i < instance_count; ++i) instances_.emplace_back([this, i] { Execute(i); });
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Its batcher ends first, as that of a model that is unloaded does.
  ~Model() {
    {
      const Lock lock(mutex_);
      ends_ = true;
    }
    woken_->notify_one();
    batcher_.join();
    woken_.reset();
    {
      const Lock lock(payloads_.mutex);
      payloads_.is_closed = true;
    }
    payloads_.come.notify_all();
    for (std::thread& instance : instances_) instance.join();
  }

  void Send(Request* request) {
    bool wakes = false;
    {
      const Lock lock(mutex_);
      queue_.push_back(request);
      wakes = HasPlace();
    }
    if (wakes) woken_->notify_one();
  }

 private:
  bool HasPlace() {
    const Lock lock(payloads_.mutex);
    return makes_in_advance_ ? payloads_.queue.size() < 2 * static_cast<size_t>(instance_count_)
                             : payloads_.idle > static_cast<int>(payloads_.queue.size());
  }

  void MakeBatches() {
    Lock lock(mutex_);
    while (!ends_) {
      if (queue_.empty()) {
        ++sleeps;
        woken_->wait_for(lock, kBatchersWait);
        continue;
      }
      lock.unlock();
      if (!AwaitPlace()) return;
      lock.lock();
      const size_t size = std::min(queue_.size(), kMaxBatchSize);
      const Batch batch(queue_.begin(), queue_.begin() + static_cast<int64_t>(size));
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<int64_t>(size));
      lock.unlock();
      {
        const Lock payloads(payloads_.mutex);
        payloads_.queue.push_back(batch);
      }
      payloads_.come.notify_one();
      lock.lock();
    }
  }

  // On a mutex of its own, so that requests can come.
  bool AwaitPlace() {
    std::mutex mutex;
    Lock lock(mutex);
    while (!woken_->wait_for(lock, kBatchersWait, [this] { return HasPlace(); })) {
      if (ends_) return false;
    }
    return true;
  }

  void Execute(int number) {
    std::mt19937 random(number);
    const std::weak_ptr<std::condition_variable> batchers = woken_;
    // The last response may have been what the model was kept for.
    const auto notify = [&] {
      if (const auto woken = batchers.lock()) woken->notify_one();
    };
    while (true) {
      const Clock::time_point idle = Clock::now();
      Batch batch;
      {
        Lock lock(payloads_.mutex);
        ++payloads_.idle;
        payloads_.come.wait(lock, [this] { return payloads_.is_closed || !payloads_.queue.empty(); });
        --payloads_.idle;
        if (payloads_.queue.empty()) return;
        batch = payloads_.queue.front();
        payloads_.queue.pop_front();
      }
      if (Clock::now() - std::max(idle, batch[0]->sent) > kLate) ++late;
      ++batches;
      if (random() % 2 == 0) notify();
      const bool is_sequential = random() % 16 != 0;
      PYTRITON_BatchBegins(is_sequential ? instance_count_ : 0);
      std::this_thread::sleep_for(DurationOfBatch(&random));
      if (is_sequential) PYTRITON_BatchHasResults();
      for (Request* request : batch) request->Finish();
      PYTRITON_BatchEnds();
      notify();
    }
  }

  // Most are short; after a long one, the batcher has waited for long.
  std::chrono::microseconds DurationOfBatch(std::mt19937* random) const {
    if (is_slow_) return std::chrono::milliseconds(70 + (*random)() % 20);
    return std::chrono::microseconds((*random)() % 2 * ((*random)() % 300));
  }

  const int instance_count_;
  const bool makes_in_advance_;
  const bool is_slow_;
  std::mutex mutex_;
  std::shared_ptr<std::condition_variable> woken_ = std::make_shared<std::condition_variable>();
  std::deque<Request*> queue_;
  std::atomic<bool> ends_{false};
  Payloads payloads_;
  std::vector<std::thread> instances_;
  std::thread batcher_;
};

// A model without a batcher: its requests are in the instances' queue. In most batches, an instance keeps requests from
// waking the others until it looks for them itself, or has taken too long.
class BuildingModel {
 public:
  explicit BuildingModel(int instance_count) {
    for (int i = 0; i < instance_count; ++i) instances_.emplace_back([this, i] { Serve(i); });
  }
  BuildingModel(const BuildingModel&) = delete;
  BuildingModel& operator=(const BuildingModel&) = delete;

  ~BuildingModel() {
    {
      const Lock lock(mutex_);
      is_closed_ = true;
    }
    come_.notify_all();
    for (std::thread& instance : instances_) instance.join();
  }

  void Send(Request* request) {
    {
      const Lock lock(mutex_);
      queue_.push_back(request);
    }
    come_.notify_one();
  }

 private:
  struct Building {
    Building(BuildingModel* owner, int number) : model(owner), random(number) {}

    BuildingModel* const model;
    std::mt19937 random;
    Clock::time_point idle = Clock::now();
    Batch batch;
  };

  void Serve(int number) {
    Building building(this, number);
    while (true) {
      {
        Lock lock(mutex_);
        ++idle_;
        come_.wait(lock, [this] { return is_closed_ || !queue_.empty(); });
        --idle_;
        if (queue_.empty()) return;
        building.batch.push_back(queue_.front());
        queue_.pop_front();
      }
      if (building.batch.size() == kMaxBatchSize || !PYTRITON_CallWhenIdle(ExecuteIdle, &building)) Execute(&building);
    }
  }

  // Called while the instance's thread waits.
  static void ExecuteIdle(void* argument) {
    auto* const building = static_cast<Building*>(argument);
    --building->model->idle_;
    Execute(building);
    ++building->model->idle_;
  }

  static void Execute(Building* building) {
    Batch& batch = building->batch;
    if (batch.empty()) return;
    if (Clock::now() - std::max(building->idle, batch[0]->sent) > kLate) ++late;
    ++built_batches;
    built_requests += static_cast<int64_t>(batch.size());
    const bool is_full = batch.size() == kMaxBatchSize;
    if (is_full || building->random() % 4 == 0) {
      PYTRITON_ReleaseRequests(is_full);
    } else {
      PYTRITON_HoldRequests();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(building->random() % 300));
    if (building->random() % 64 == 0) {
      PYTRITON_ReleaseRequests(false);
      building->model->CheckOthersTakeRequests();
    }
    for (Request* request : std::exchange(batch, {})) request->Finish();
    building->idle = Clock::now();
  }

  // No request stays in the queue while an instance is idle.
  void CheckOthersTakeRequests() {
    const Clock::time_point end = Clock::now() + kLate;
    while (HasForgotten()) {
      if (Clock::now() > end) {
        ++late;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool HasForgotten() {
    const Lock lock(mutex_);
    return !queue_.empty() && idle_ > 0;
  }

  std::mutex mutex_;
  std::condition_variable come_;
  std::deque<Request*> queue_;
  std::atomic<int> idle_{0};
  bool is_closed_ = false;
  std::vector<std::thread> instances_;
};

template <typename AnyModel>
void Serve(AnyModel& model, int rounds) {
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&model, client, rounds] {
      std::mt19937 random(client);
      for (int i = 0; i < rounds; ++i) {
        std::deque<Request> sent(1 + random() % 3);
        for (Request& request : sent) model.Send(&request);
        for (Request& request : sent) request.Wait();
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

void ServeAll(bool makes_in_advance) {
  for (int i = 0; i < kModels; ++i) {
    Model model(1 + i % 3, makes_in_advance, false);
    Serve(model, kRounds);
  }
  Model slow(1, makes_in_advance, true);
  Serve(slow, kSlowRounds);
}

void BuildAll() {
  for (int i = 0; i < kModels; ++i) {
    BuildingModel model(1 + i % 3);
    Serve(model, kRounds);
  }
}

}  // namespace

int main() {
  BuildAll();
  ServeAll(true);
  PYTRITON_ExpectLostWakeUps();  // as where Triton makes no batch in advance
  ServeAll(false);
  std::printf("late=%lld sleeps_per_batch=%.2f requests_per_built_batch=%.2f\n", static_cast<long long>(late),
              static_cast<double>(sleeps) / static_cast<double>(batches),
              static_cast<double>(built_requests) / static_cast<double>(built_batches));
}
