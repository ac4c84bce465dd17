// The built-in metrics of models, on Triton's metrics endpoint: `pytriton_requests_in_flight` and others;
// docs/metrics.md has the list. Instances count in their own atomics, which the maintenance thread publishes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/histogram.h"
#include "services/metrics.h"
#include "triton/api.h"
#include "triton/cancellation.h"
#include "triton/request_statistics.h"

namespace pytriton {

class ModelMetrics;

// The counters and histograms of one instance. From any thread, without a lock.
class InstanceMetrics {
 public:
  explicit InstanceMetrics(std::shared_ptr<ModelMetrics> model);
  // Publishes the rest.
  ~InstanceMetrics();
  InstanceMetrics(const InstanceMetrics&) = delete;
  InstanceMetrics& operator=(const InstanceMetrics&) = delete;

  // Sets whether a request is a stream of responses.
  void SetDecoupled(bool decoupled) { decoupled_.store(decoupled, std::memory_order_relaxed); }
  // Sets the function that measures the bytes of shared memory of the instance's connection.
  void SetMemory(std::function<int64_t()> memory);

  // A batch has arrived at the backend.
  void Begin(const std::vector<TRITONBACKEND_Request*>& requests, int64_t rows, uint64_t now);
  // Requests of a batch were served: the callable has returned, successfully or not.
  void Ran(const Timing& timing, uint64_t count);
  // A request has ended; it still belongs to the backend.
  void End(const TRITONBACKEND_Request* request, uint64_t exec_start, uint64_t now);
  // A request was returned to Triton, to be scheduled again.
  void Leave();
  void CountCancelled(Cancellation cancellation, uint64_t count = 1);
  // Requests failed with an exception of a class.
  void CountError(const std::string& error, uint64_t count) const;

 private:
  friend class ModelMetrics;

  const std::shared_ptr<ModelMetrics> model_;
  Histogram request_;
  Histogram queue_;
  Histogram wait_;
  Histogram python_;
  Histogram batch_;
  std::atomic<int64_t> in_flight_{0};
  std::atomic<bool> decoupled_{false};
  std::atomic<bool> changed_{true};                   // since it was last published
  std::array<std::atomic<uint64_t>, 2> cancelled_{};  // by the client, by a timeout
  std::array<uint64_t, 2> published_cancelled_{};
  std::function<int64_t()> memory_;  // guarded by the model's mutex
};

// The metrics of a model's version, which its instances share. They are deleted with the last instance, as Triton's own
// metrics of the model are.
class ModelMetrics {
 public:
  ModelMetrics(const std::string& model, int64_t version);

  void Add(InstanceMetrics* instance);
  void Remove(InstanceMetrics* instance);
  void CountError(const std::string& error, uint64_t count);
  // Publishes values that may have changed: none of a model that has not been used for long.
  void Publish();

 private:
  friend class InstanceMetrics;

  struct Published;

  void Publish(InstanceMetrics* instance);

  const std::vector<std::pair<std::string, std::string>> labels_;
  std::mutex mutex_;  // guards the members below
  std::vector<InstanceMetrics*> instances_;
  std::shared_ptr<Published> published_;  // null if metrics are disabled
  std::map<std::string, Metric> errors_;  // by class
  int unused_for_ = 0;                    // calls of Publish that found nothing changed
};

// All models of the backend.
class AllModelMetrics {
 public:
  // Returns the metrics of a new instance.
  std::unique_ptr<InstanceMetrics> Join(const std::string& model, int64_t version);
  void Publish();

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int64_t>, std::weak_ptr<ModelMetrics>> models_;
};

}  // namespace pytriton
