#include "services/metrics.h"

#include <cstring>

#include "triton/error.h"

namespace pytriton {

namespace {

// A metric's labels as Triton's parameters.
class MetricLabels {
 public:
  explicit MetricLabels(const std::vector<std::pair<std::string, std::string>>& labels) {
    for (const auto& [key, value] : labels) {
      labels_.push_back(TRITONSERVER_ParameterNew(key.c_str(), TRITONSERVER_PARAMETER_STRING, value.c_str()));
    }
  }
  ~MetricLabels() {
    for (const TRITONSERVER_Parameter* each : labels_) {
      TRITONSERVER_ParameterDelete(const_cast<TRITONSERVER_Parameter*>(each));
    }
  }
  MetricLabels(const MetricLabels&) = delete;
  MetricLabels& operator=(const MetricLabels&) = delete;

  const TRITONSERVER_Parameter** data() { return labels_.data(); }
  size_t size() const { return labels_.size(); }

 private:
  std::vector<const TRITONSERVER_Parameter*> labels_;
};

TRITONSERVER_Metric* NewHistogram(TRITONSERVER_MetricFamily* family, MetricLabels* labels,
                                  const std::vector<double>& buckets) {
  if (TRITONSERVER_MetricNewWithArgs == nullptr || TRITONSERVER_MetricArgsNew == nullptr) {
    throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED, "this server has no histograms: it is older than 24.08");
  }
  TRITONSERVER_MetricArgs* args = nullptr;
  Check(TRITONSERVER_MetricArgsNew(&args));
  TRITONSERVER_Metric* metric = nullptr;
  TRITONSERVER_Error* error = TRITONSERVER_MetricArgsSetHistogram(args, buckets.data(), buckets.size());
  if (error == nullptr) {
    error = TRITONSERVER_MetricNewWithArgs(&metric, family, labels->data(), labels->size(), args);
  }
  LogIfError(TRITONSERVER_MetricArgsDelete(args), "cannot delete a metric's arguments");
  Check(error);
  return metric;
}

}  // namespace

MetricFamily::MetricFamily(TRITONSERVER_MetricKind kind, const std::string& name, const std::string& description)
    : kind_(kind) {
  Check(TRITONSERVER_MetricFamilyNew(&family_, kind, name.c_str(), description.c_str()));
}

MetricFamily::~MetricFamily() { LogIfError(TRITONSERVER_MetricFamilyDelete(family_), "cannot delete a metric family"); }

Metric::Metric(std::shared_ptr<MetricFamily> family, const std::vector<std::pair<std::string, std::string>>& labels,
               const std::vector<double>& buckets)
    : family_(std::move(family)) {
  const std::lock_guard<std::mutex> lock(family_->mutex());
  MetricLabels parameters(labels);
  if (family_->kind() == TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    metric_ = NewHistogram(family_->get(), &parameters, buckets);
  } else {
    Check(TRITONSERVER_MetricNew(&metric_, family_->get(), parameters.data(), parameters.size()));
  }
}

Metric::~Metric() {
  const std::lock_guard<std::mutex> lock(family_->mutex());
  LogIfError(TRITONSERVER_MetricDelete(metric_), "cannot delete a metric");
}

void Metric::Observe(double value) {
  if (TRITONSERVER_MetricObserve == nullptr || family_->kind() != TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED, "only histograms can observe values");
  }
  Check(TRITONSERVER_MetricObserve(metric_, value));
}

int64_t Metric::ValueBits() {
  double value = 0;
  Check(TRITONSERVER_MetricValue(metric_, &value));
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

std::shared_ptr<MetricFamily> MetricFamilies::Get(TRITONSERVER_MetricKind kind, const std::string& name,
                                                  const std::string& description) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<MetricFamily>& known = families_[name];
  std::shared_ptr<MetricFamily> family = known.lock();
  if (family == nullptr) {
    family = std::make_shared<MetricFamily>(kind, name, description);
    known = family;
  } else if (family->kind() != kind) {
    throw TritonError(TRITONSERVER_ERROR_ALREADY_EXISTS,
                      "there is a metric family '" + name + "' of another kind: choose another name");
  }
  return family;
}

void Metrics::Clear() {
  metrics_.clear();
  of_family_.clear();
}

int64_t Metrics::Do(const MetricMessage& message) {
  if (message.command == MetricOperation::kFamily) {
    of_family_[++last_] =
        families_->Get(static_cast<TRITONSERVER_MetricKind>(message.kind), message.name, message.description);
    return last_;
  }
  if (message.command == MetricOperation::kDeleteFamily) return of_family_.erase(message.number), 0;
  if (message.command == MetricOperation::kDelete) return metrics_.erase(message.number), 0;
  if (message.command == MetricOperation::kMetric) {
    const auto family = of_family_.find(message.number);
    if (family == of_family_.end()) throw TritonError(TRITONSERVER_ERROR_NOT_FOUND, "the metric family was deleted");
    metrics_[++last_] = std::make_shared<Metric>(family->second, message.labels, message.buckets);
    return last_;
  }
  if (message.command == MetricOperation::kUpdate) {
    for (const MetricUpdate& update : message.updates) {
      LogIfError(Guarded([&] { Change(update.operation, update.number, update.value, update.count); }),
                 "cannot change a metric");
    }
    return 0;
  }
  if (message.command == MetricOperation::kValue) return Find(message.number)->ValueBits();
  return Change(message.command, message.number, message.value), 0;
}

const std::shared_ptr<Metric>& Metrics::Find(int64_t number) const {
  const auto metric = metrics_.find(number);
  if (metric == metrics_.end()) throw TritonError(TRITONSERVER_ERROR_NOT_FOUND, "the metric was deleted");
  return metric->second;
}

void Metrics::Change(MetricOperation operation, int64_t number, double value, int64_t count) {
  const std::shared_ptr<Metric>& metric = Find(number);
  switch (operation) {
    case MetricOperation::kIncrement:
      return Check(TRITONSERVER_MetricIncrement(metric->get(), value));
    case MetricOperation::kSet:
      return Check(TRITONSERVER_MetricSet(metric->get(), value));
    case MetricOperation::kObserve:
      for (int64_t i = 0; i < count; ++i) metric->Observe(value);
      return;
    default:
      throw ProtocolError("a worker requested an unknown operation on a metric");
  }
}

}  // namespace pytriton
