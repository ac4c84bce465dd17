#include "restarts.h"

#include <map>
#include <memory>
#include <mutex>

#include "triton_error.h"

namespace pytriton {

namespace {

using Labels = std::array<std::string, 3>;
constexpr std::array<const char*, 3> kNames = {"model", "version", "instance"};

// The metrics by their labels, and how many use each: while a model is loaded again, its old and its new instance have
// the same labels, and Triton has one metric for both.
class Family {
 public:
  static Family& Get() {
    static auto* family = new Family;  // its metrics end with the server
    return *family;
  }

  TRITONSERVER_Metric* Take(const Labels& labels) {
    if (family_ == nullptr) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    Use& use = uses_[labels];
    if (use.metric == nullptr) use.metric = New(labels);
    ++use.users;
    return use.metric;
  }

  void GiveBack(const Labels& labels) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = uses_.find(labels);
    if (found == uses_.end() || --found->second.users > 0) return;
    LogIfError(TRITONSERVER_MetricDelete(found->second.metric), "cannot delete a metric");
    uses_.erase(found);
  }

 private:
  struct Use {
    TRITONSERVER_Metric* metric = nullptr;
    int users = 0;
  };

  Family() {
    TRITONSERVER_Error* error = TRITONSERVER_MetricFamilyNew(
        &family_, TRITONSERVER_METRIC_KIND_COUNTER, "pytriton_worker_restarts_total",
        "How often the process of a model instance was started again after it had ended by itself");
    if (error == nullptr) return;
    TRITONSERVER_ErrorDelete(error);  // the user wants no metrics
    family_ = nullptr;
  }

  TRITONSERVER_Metric* New(const Labels& labels) {
    using Parameter = std::unique_ptr<TRITONSERVER_Parameter, void (*)(TRITONSERVER_Parameter*)>;
    const auto parameter = [&](size_t i) {
      return Parameter(TRITONSERVER_ParameterNew(kNames[i], TRITONSERVER_PARAMETER_STRING, labels[i].c_str()),
                       TRITONSERVER_ParameterDelete);
    };
    const std::array<Parameter, 3> owned = {parameter(0), parameter(1), parameter(2)};
    std::array<const TRITONSERVER_Parameter*, 3> parameters = {owned[0].get(), owned[1].get(), owned[2].get()};
    TRITONSERVER_Metric* metric = nullptr;
    LogIfError(TRITONSERVER_MetricNew(&metric, family_, parameters.data(), parameters.size()), "cannot make a metric");
    return metric;
  }

  TRITONSERVER_MetricFamily* family_ = nullptr;
  std::mutex mutex_;
  std::map<Labels, Use> uses_;
};

}  // namespace

Restarts::Restarts(const std::string& model, int64_t version, const std::string& instance)
    : labels_({model, std::to_string(version), instance}), metric_(Family::Get().Take(labels_)) {}

Restarts::~Restarts() { Family::Get().GiveBack(labels_); }

void Restarts::Add(int64_t count) {
  if (metric_ == nullptr || count <= 0) return;
  LogIfError(TRITONSERVER_MetricIncrement(metric_, static_cast<double>(count)), "cannot count a restart");
}

}  // namespace pytriton
