// Custom metrics on the server's endpoint. All instances of the backend share them by name and labels, so that one that
// goes takes away only what nobody else has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "calls.h"
#include "triton_api.h"

namespace pytriton {

class MetricFamily;
class Metric;

// All families of the backend.
class MetricFamilies {
 public:
  // Makes one, or finds the one of that name. Throws TritonError.
  std::shared_ptr<MetricFamily> Get(TRITONSERVER_MetricKind kind, const std::string& name,
                                    const std::string& description);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<MetricFamily>> families_;
};

// What one worker has of them. For one thread at a time.
class Metrics {
 public:
  explicit Metrics(MetricFamilies* families) : families_(families) {}

  // Returns the number of what was made, the bits of a metric's value, or 0. Throws TritonError.
  int64_t Do(const MetricMessage& message);
  // Lets go of all.
  void Clear();

 private:
  MetricFamilies* const families_;
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<MetricFamily>> of_family_;
  std::map<int64_t, std::shared_ptr<Metric>> metrics_;
};

}  // namespace pytriton
