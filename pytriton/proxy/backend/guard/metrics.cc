#include "guard/metrics.h"

#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "guard/gate.h"
#include "guard/interpose.h"
#include "triton/api.h"

namespace pytriton::guard {

namespace {

// The metric lasts as long as the server; null if it cannot be made.
TRITONSERVER_Metric* NewCounter(const char* name, const char* description) {
  TRITONSERVER_MetricFamily* family = nullptr;
  TRITONSERVER_Metric* metric = nullptr;
  TRITONSERVER_Error* error =
      PYTRITON_NEXT(TRITONSERVER_MetricFamilyNew)(&family, TRITONSERVER_METRIC_KIND_COUNTER, name, description);
  if (error == nullptr) error = PYTRITON_NEXT(TRITONSERVER_MetricNew)(&metric, family, nullptr, 0);
  if (error == nullptr) return metric;
  PYTRITON_NEXT(TRITONSERVER_ErrorDelete)(error);
  return nullptr;
}

void Add(TRITONSERVER_Metric* metric, double count) {
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_MetricIncrement)(metric, count);
  if (error != nullptr) PYTRITON_NEXT(TRITONSERVER_ErrorDelete)(error);
}

std::mutex mutex;
TRITONSERVER_Metric* hangs = nullptr;
uint64_t hangs_published = 0;

}  // namespace

void PublishMetrics() {
  const char* restarts = std::getenv("PYTRITON_SERVER_RESTARTS");
  if (restarts == nullptr) return;
  TRITONSERVER_Metric* metric = NewCounter(
      "pytriton_server_restarts_total", "Number of times that the server was restarted after it exited unexpectedly");
  if (metric != nullptr) Add(metric, std::strtod(restarts, nullptr));
  const std::lock_guard<std::mutex> lock(mutex);
  hangs = NewCounter("pytriton_hanging_calls_total",
                     "Number of calls of inference callables that took longer than ModelConfig.watchdog_secs");
}

void UpdateHangs() {
  const std::lock_guard<std::mutex> lock(mutex);
  const uint64_t count = Hangs();  // once: it may change at any time
  if (hangs == nullptr || count <= hangs_published) return;
  Add(hangs, static_cast<double>(count - hangs_published));
  hangs_published = count;
}

}  // namespace pytriton::guard
