// What the tests of workers with many batches share: what is done at the worker_end of such a worker, and for how long.
#pragma once

#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "data_path.h"

namespace data_path {

constexpr int kSoonMs = 20000;
constexpr int kNothingMs = 100;  // how long nothing is to happen

// The next batch, which comes soon.
inline fake_worker::Taken Next(fake_worker::WorkerEnd* worker_end) {
  std::optional<fake_worker::Taken> taken = worker_end->Take(kSoonMs);
  CHECK(taken);
  return *taken;
}

inline void EchoAll(fake_worker::WorkerEnd* worker_end, const fake_worker::Taken& taken) {
  fake_worker::Reply reply;
  for (int64_t i = 0; i < taken.batch.request_count; ++i) reply.Echo(taken, i);
  worker_end->Release(taken);
  CHECK(worker_end->Send(reply));
}

// So many batches of one request each.
inline std::vector<Requests> SingleRequests(const Model& model, int count, std::mt19937_64* random) {
  std::vector<Requests> batches;
  for (int i = 0; i < count; ++i) batches.push_back(BatchOf(model.Request(random)));
  return batches;
}

// Submits batches one after the other, in a thread of its own. They outlive it.
class Submission {
 public:
  Submission(Model* model, const std::vector<Requests>& batches)
      : thread_([this, model, &batches] {
          for (const Requests& batch : batches) {
            model->Submit(batch);
            ++count_;
          }
        }) {}

  // How many have been handed over.
  int count() const { return count_; }
  void Join() { thread_.join(); }

 private:
  std::atomic<int> count_{0};
  std::thread thread_;
};

// All responses to a batch in one.
inline bool SendResult(fake_worker::WorkerEnd* worker_end, const fake_worker::Taken& taken,
                       const pytriton::ResultMessage& result) {
  const std::string message = fake_worker::Whole(result, fake_worker::DataOf(taken.batch, taken.data));
  return worker_end->SendMessage(pytriton::NotificationKind::kResult, taken.sequence, message);
}

// A batch that is served from beginning to end: what the worker said before it was acknowledged then.
inline void CheckServedNow(Model* model, std::mt19937_64* random) {
  auto batch = BatchOf(model->Request(random));
  model->Submit(batch);
  EchoAll(&model->worker_end(), Next(&model->worker_end()));
  Model::Wait(batch);
  Model::CheckEchoed(*batch[0]);
}

}  // namespace data_path
