// How often the processes of model instances were started again, on Triton's metrics endpoint:
// `pytriton_worker_restarts_total{model,version,instance}`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "services/metrics.h"

namespace pytriton {

class RestartCounter {
 public:
  // Shows the instance, at first with none. Where the server has no metrics, nothing is shown.
  RestartCounter(const std::string& model, int64_t version, const std::string& instance);

  void Add(int64_t count);

 private:
  std::optional<Metric> metric_;
};

}  // namespace pytriton
