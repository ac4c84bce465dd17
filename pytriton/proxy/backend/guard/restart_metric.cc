#include "guard/restart_metric.h"

#include <cstdlib>

#include "guard/interpose.h"
#include "triton/api.h"

namespace pytriton::guard {

void PublishRestarts() {
  const char* restarts = std::getenv("PYTRITON_SERVER_RESTARTS");
  if (restarts == nullptr) return;
  TRITONSERVER_MetricFamily* family = nullptr;
  TRITONSERVER_Metric* metric = nullptr;
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_MetricFamilyNew)(
      &family, TRITONSERVER_METRIC_KIND_COUNTER, "pytriton_server_restarts_total",
      "Number of times that the server was started again after it had ended by itself");
  if (error == nullptr) error = PYTRITON_NEXT(TRITONSERVER_MetricNew)(&metric, family, nullptr, 0);
  if (error == nullptr) error = PYTRITON_NEXT(TRITONSERVER_MetricIncrement)(metric, std::strtod(restarts, nullptr));
  // Both last as long as the server.
  if (error != nullptr) PYTRITON_NEXT(TRITONSERVER_ErrorDelete)(error);
}

}  // namespace pytriton::guard
