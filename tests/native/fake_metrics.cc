#include "fake_metrics.h"

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "fake_triton.h"

struct TRITONSERVER_MetricFamily {
  TRITONSERVER_MetricKind kind;
  std::string name;
  int metrics = 0;
};

struct TRITONSERVER_Metric {
  TRITONSERVER_MetricFamily* family;
  std::string labels;
  double value = 0;
};

namespace {

std::mutex metrics_mutex;
std::map<std::pair<std::string, std::string>, TRITONSERVER_Metric*> metrics;  // by family, and values of labels

}  // namespace

namespace fake_metrics {

double ValueOf(const std::string& family) {
  const std::lock_guard<std::mutex> lock(metrics_mutex);
  for (const auto& [key, metric] : metrics) {
    if (key.first == family) return metric->value;
  }
  return std::nan("");
}

}  // namespace fake_metrics

extern "C" {

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char* name, const TRITONSERVER_ParameterType,
                                                  const void* value) {
  return new TRITONSERVER_Parameter{name, static_cast<const char*>(value)};
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void* data, const uint64_t size) {
  return new TRITONSERVER_Parameter{name, std::string(static_cast<const char*>(data), size)};
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { delete parameter; }

TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily** family, const TRITONSERVER_MetricKind kind,
                                                 const char* name, const char*) {
  *family = new TRITONSERVER_MetricFamily{kind, name};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
  fake_triton::Require(family->metrics == 0, "a family is deleted after its metrics");
  delete family;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricNew(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family,
                                           const TRITONSERVER_Parameter** labels, const uint64_t label_count) {
  std::string joined;
  for (uint64_t i = 0; i < label_count; ++i) joined += (i > 0 ? "/" : "") + labels[i]->value;
  const std::lock_guard<std::mutex> lock(metrics_mutex);
  *metric = new TRITONSERVER_Metric{family, joined};
  ++family->metrics;
  metrics[std::pair(family->name, joined)] = *metric;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
  const std::lock_guard<std::mutex> lock(metrics_mutex);
  --metric->family->metrics;
  metrics.erase(std::pair(metric->family->name, metric->labels));
  delete metric;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricValue(TRITONSERVER_Metric* metric, double* value) {
  const std::lock_guard<std::mutex> lock(metrics_mutex);
  *value = metric->value;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
  const std::lock_guard<std::mutex> lock(metrics_mutex);
  metric->value += value;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric* metric, double value) {
  const std::lock_guard<std::mutex> lock(metrics_mutex);
  metric->value = value;
  return nullptr;
}
}
