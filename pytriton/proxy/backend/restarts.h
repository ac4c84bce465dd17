// Tells on the server's metrics endpoint how often worker processes were started again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "triton_api.h"

namespace pytriton {

// `pytriton_worker_restarts_total` of one model instance. Does nothing where the server has no metrics.
class Restarts {
 public:
  Restarts(const std::string& model, int64_t version, const std::string& instance);
  void Add(int64_t count);

 private:
  struct Delete {
    void operator()(TRITONSERVER_Metric* metric) const;
  };

  std::unique_ptr<TRITONSERVER_Metric, Delete> metric_;
};

}  // namespace pytriton
