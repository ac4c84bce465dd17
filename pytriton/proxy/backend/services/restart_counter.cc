#include "services/restart_counter.h"

#include <memory>

#include "triton/error.h"

namespace pytriton {

namespace {

std::shared_ptr<MetricFamily> NewFamily() {
  try {
    return std::make_shared<MetricFamily>(
        TRITONSERVER_METRIC_KIND_COUNTER, "pytriton_worker_restarts_total",
        "Number of times that the process of a model instance was restarted after it exited unexpectedly");
  } catch (const TritonError&) {
    return nullptr;  // metrics are disabled
  }
}

// One for all: while a model is reloaded, its old and new instances have the same labels.
const std::shared_ptr<MetricFamily>& Family() {
  static const auto* family = new std::shared_ptr<MetricFamily>(NewFamily());  // it ends with the server
  return *family;
}

}  // namespace

RestartCounter::RestartCounter(const std::string& model, int64_t version, const std::string& instance) {
  if (Family() == nullptr) return;
  try {
    metric_.emplace(Family(), std::vector<std::pair<std::string, std::string>>{
                                  {"model", model}, {"version", std::to_string(version)}, {"instance", instance}});
  } catch (const TritonError& error) {
    Log(TRITONSERVER_LOG_ERROR, std::string("cannot create a metric: ") + error.what());
  }
}

void RestartCounter::Add(int64_t count) {
  if (!metric_ || count <= 0) return;
  LogIfError(TRITONSERVER_MetricIncrement(metric_->get(), static_cast<double>(count)), "cannot count a restart");
}

}  // namespace pytriton
