// How often the processes of model instances were started again, on Triton's metrics endpoint:
// `pytriton_worker_restarts_total{model,version,instance}`.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "triton_api.h"

namespace pytriton {

class Restarts {
 public:
  // Shows the instance, at first with none. Where the server has no metrics, nothing is shown.
  Restarts(const std::string& model, int64_t version, const std::string& instance);
  ~Restarts();
  Restarts(const Restarts&) = delete;
  Restarts& operator=(const Restarts&) = delete;

  void Add(int64_t count);

 private:
  const std::array<std::string, 3> labels_;
  TRITONSERVER_Metric* metric_;
};

}  // namespace pytriton
