#include "restarts.h"

#include "triton_error.h"

namespace pytriton {

namespace {

constexpr char kName[] = "pytriton_worker_restarts_total";
constexpr char kDescription[] = "Number of times that the worker process of a model instance was started again";

struct DeleteParameter {
  void operator()(TRITONSERVER_Parameter* parameter) const { TRITONSERVER_ParameterDelete(parameter); }
};

TRITONSERVER_MetricFamily* NewFamily() {
  if (TRITONSERVER_MetricFamilyNew == nullptr) return nullptr;
  TRITONSERVER_MetricFamily* family = nullptr;
  // Fails where metrics are switched off.
  TRITONSERVER_ErrorDelete(
      TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_COUNTER, kName, kDescription));
  return family;
}

}  // namespace

Restarts::Restarts(const std::string& model, int64_t version, const std::string& instance) {
  static TRITONSERVER_MetricFamily* const family = NewFamily();  // for as long as the server lives
  if (family == nullptr) return;
  using Label = std::unique_ptr<TRITONSERVER_Parameter, DeleteParameter>;
  const auto label = [](const char* name, const std::string& value) {
    return Label(TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_STRING, value.c_str()));
  };
  const Label labels[] = {label("model", model), label("version", std::to_string(version)),
                          label("instance", instance)};
  const TRITONSERVER_Parameter* pointers[] = {labels[0].get(), labels[1].get(), labels[2].get()};
  TRITONSERVER_Metric* metric = nullptr;
  LogIfError(TRITONSERVER_MetricNew(&metric, family, pointers, 3), "cannot count restarts");
  metric_.reset(metric);
}

void Restarts::Add(int64_t count) {
  if (metric_ != nullptr)
    LogIfError(TRITONSERVER_MetricIncrement(metric_.get(), static_cast<double>(count)), "cannot count a restart");
}

void Restarts::Delete::operator()(TRITONSERVER_Metric* metric) const {
  LogIfError(TRITONSERVER_MetricDelete(metric), "cannot delete a metric");
}

}  // namespace pytriton
