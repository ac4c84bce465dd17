// The number of restarts of model instances' processes, on Triton's metrics endpoint:
// `pytriton_worker_restarts_total{model,version,instance}`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "services/metrics.h"

namespace pytriton {

class RestartCounter {
 public:
  // Creates the metric of an instance, at first 0. Does nothing if metrics are disabled.
  RestartCounter(const std::string& model, int64_t version, const std::string& instance);

  void Add(int64_t count);

 private:
  std::optional<Metric> metric_;
};

}  // namespace pytriton
