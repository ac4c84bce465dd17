// Custom metrics on the server's endpoint. All instances of the backend share them by name and labels; a metric is
// deleted with its last user.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "triton/api.h"
#include "wire/service.h"

namespace pytriton {

class MetricFamily {
 public:
  // Throws TritonError, for instance if metrics are disabled.
  MetricFamily(TRITONSERVER_MetricKind kind, const std::string& name, const std::string& description);
  ~MetricFamily();
  MetricFamily(const MetricFamily&) = delete;
  MetricFamily& operator=(const MetricFamily&) = delete;

  TRITONSERVER_MetricKind kind() const { return kind_; }
  TRITONSERVER_MetricFamily* get() const { return family_; }
  // Held while metrics of the family are created and deleted, since Triton counts those with the same labels in several
  // steps.
  std::mutex& mutex() { return mutex_; }

 private:
  const TRITONSERVER_MetricKind kind_;
  TRITONSERVER_MetricFamily* family_ = nullptr;
  std::mutex mutex_;
};

// A metric of a family. Metrics with the same labels share one value, which is deleted with the last of them.
class Metric {
 public:
  // `buckets`: the upper bounds of a histogram. Throws TritonError.
  Metric(std::shared_ptr<MetricFamily> family, const std::vector<std::pair<std::string, std::string>>& labels,
         const std::vector<double>& buckets = {});
  ~Metric();
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  void Observe(double value);
  int64_t ValueBits();
  TRITONSERVER_Metric* get() const { return metric_; }

 private:
  const std::shared_ptr<MetricFamily> family_;
  TRITONSERVER_Metric* metric_ = nullptr;
};

// All families of the backend.
class MetricFamilies {
 public:
  // Creates a family, or returns the one of that name. Throws TritonError.
  std::shared_ptr<MetricFamily> Get(TRITONSERVER_MetricKind kind, const std::string& name,
                                    const std::string& description);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<MetricFamily>> families_;
};

// The metrics of one worker. For one thread at a time.
class Metrics {
 public:
  explicit Metrics(MetricFamilies* families) : families_(families) {}

  // Returns the number of the created family or metric, the bits of a metric's value, or 0. Throws TritonError.
  int64_t Do(const MetricMessage& message);
  // Releases all of them.
  void Clear();

 private:
  const std::shared_ptr<Metric>& Find(int64_t number) const;
  void Change(MetricOperation operation, int64_t number, double value, int64_t count = 1);

  MetricFamilies* const families_;
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<MetricFamily>> of_family_;
  std::map<int64_t, std::shared_ptr<Metric>> metrics_;
};

}  // namespace pytriton
