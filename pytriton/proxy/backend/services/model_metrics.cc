#include "services/model_metrics.h"

#include <algorithm>
#include <utility>

#include "triton/error.h"

namespace pytriton {

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr double kNanoseconds = 1e9;
constexpr size_t kMaxErrors = 32;  // distinct classes of errors of a model
constexpr char kOtherErrors[] = "other";

// In nanoseconds: from 100 µs to a minute.
const std::vector<int64_t>& DurationBounds() {
  static const auto* bounds = new std::vector<int64_t>{
      100'000,       250'000,       500'000,       1'000'000,      2'500'000,      5'000'000,
      10'000'000,    25'000'000,    50'000'000,    100'000'000,    250'000'000,    500'000'000,
      1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000, 30'000'000'000, 60'000'000'000};
  return *bounds;
}

// In samples.
const std::vector<int64_t>& BatchBounds() {
  static const auto* bounds = new std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  return *bounds;
}

std::vector<double> Published(const std::vector<int64_t>& bounds, double unit) {
  std::vector<double> published;
  for (const int64_t bound : bounds) published.push_back(static_cast<double>(bound) / unit);
  return published;
}

// A family of all models. It exists until the server exits: both backends have families with these names, and Triton
// would delete them for both.
class Family {
 public:
  Family(TRITONSERVER_MetricKind kind, const char* name, const char* description, std::vector<double> buckets = {})
      : buckets_(std::move(buckets)) {
    if (kind == TRITONSERVER_METRIC_KIND_HISTOGRAM && TRITONSERVER_MetricNewWithArgs == nullptr) return;
    try {
      family_ = std::make_shared<MetricFamily>(kind, name, description);
    } catch (const TritonError&) {
      // Metrics are disabled.
    }
  }

  // Returns null if metrics are disabled, or the server lacks the kind.
  std::unique_ptr<Metric> New(const Labels& labels) const {
    return family_ == nullptr ? nullptr : std::make_unique<Metric>(family_, labels, buckets_);
  }
  const std::shared_ptr<MetricFamily>& get() const { return family_; }

 private:
  const std::vector<double> buckets_;
  std::shared_ptr<MetricFamily> family_;
};

Family Durations(const char* name, const char* description) {
  return {TRITONSERVER_METRIC_KIND_HISTOGRAM, name, description, Published(DurationBounds(), kNanoseconds)};
}

struct Families {
  const Family request = Durations("pytriton_request_duration_seconds",
                                   "Time from a request's arrival at the server to its last response, in seconds");
  const Family queue =
      Durations("pytriton_queue_duration_seconds", "Time that a request waited in Triton's queue, in seconds");
  const Family wait = Durations("pytriton_worker_wait_duration_seconds",
                                "Time from handing a request to the worker to the call of the function, in seconds");
  const Family python = Durations("pytriton_python_duration_seconds",
                                  "Time that the inference callable took for a request's batch, in seconds");
  const Family batch = {TRITONSERVER_METRIC_KIND_HISTOGRAM, "pytriton_batch_size", "Number of samples in a batch",
                        Published(BatchBounds(), 1)};
  const Family in_flight = {TRITONSERVER_METRIC_KIND_GAUGE, "pytriton_requests_in_flight",
                            "Number of requests that have left Triton's queue and have not ended"};
  const Family streams = {TRITONSERVER_METRIC_KIND_GAUGE, "pytriton_streams_open",
                          "Number of requests of a decoupled model that have not ended"};
  const Family memory = {TRITONSERVER_METRIC_KIND_GAUGE, "pytriton_shared_memory_bytes",
                         "Bytes of shared memory that requests and results take"};
  const Family cancelled = {
      TRITONSERVER_METRIC_KIND_COUNTER, "pytriton_cancelled_requests_total",
      "Number of requests that ended because the client disconnected or cancelled, or a timeout passed"};
  const Family errors = {TRITONSERVER_METRIC_KIND_COUNTER, "pytriton_callable_errors_total",
                         "Number of requests that failed with an exception, by its class"};
};

const Families& AllFamilies() {
  static const auto* families = new Families;
  return *families;
}

Labels With(Labels labels, const char* key, const std::string& value) {
  labels.emplace_back(key, value);
  return labels;
}

void Set(const std::unique_ptr<Metric>& metric, int64_t value) {
  if (metric == nullptr) return;
  LogIfError(TRITONSERVER_MetricSet(metric->get(), static_cast<double>(value)), "cannot set a metric");
}

void Add(Metric* metric, uint64_t count) {
  if (count == 0) return;
  LogIfError(TRITONSERVER_MetricIncrement(metric->get(), static_cast<double>(count)), "cannot increment a metric");
}

// Number of publications after the last change, during which memory is returned to the system.
constexpr int kLastPublications = 20;

constexpr uint64_t kLongest = 24 * 3600 * uint64_t{1'000'000'000};  // times from a worker are not trusted

int64_t Between(uint64_t start, uint64_t end) {
  return end > start ? static_cast<int64_t>(std::min(end - start, kLongest)) : 0;
}

uint64_t ArrivalOf(const TRITONBACKEND_Request* request) {
  return PYTRITON_ArrivalNs == nullptr ? 0 : PYTRITON_ArrivalNs(request);
}

}  // namespace

struct ModelMetrics::Published {
  explicit Published(const Labels& labels)
      : request(AllFamilies().request.New(labels)),
        queue(PYTRITON_ArrivalNs == nullptr ? nullptr : AllFamilies().queue.New(labels)),
        wait(AllFamilies().wait.New(labels)),
        python(AllFamilies().python.New(labels)),
        batch(AllFamilies().batch.New(labels)),
        in_flight(AllFamilies().in_flight.New(labels)),
        memory(AllFamilies().memory.New(labels)),
        cancelled{AllFamilies().cancelled.New(With(labels, "reason", "client")),
                  AllFamilies().cancelled.New(With(labels, "reason", "timeout"))} {}

  const std::unique_ptr<Metric> request, queue, wait, python, batch, in_flight, memory;
  const std::array<std::unique_ptr<Metric>, 2> cancelled;
  std::unique_ptr<Metric> streams;  // only of decoupled models
};

InstanceMetrics::InstanceMetrics(std::shared_ptr<ModelMetrics> model)
    : model_(std::move(model)),
      request_(DurationBounds(), kNanoseconds),
      queue_(DurationBounds(), kNanoseconds),
      wait_(DurationBounds(), kNanoseconds),
      python_(DurationBounds(), kNanoseconds),
      batch_(BatchBounds(), 1) {
  model_->Add(this);
}

InstanceMetrics::~InstanceMetrics() { model_->Remove(this); }

void InstanceMetrics::SetMemory(std::function<int64_t()> memory) {
  const std::lock_guard<std::mutex> lock(model_->mutex_);
  memory_ = std::move(memory);
  changed_.store(true, std::memory_order_relaxed);
}

void InstanceMetrics::Begin(const std::vector<TRITONBACKEND_Request*>& requests, int64_t rows, uint64_t now) {
  in_flight_.fetch_add(static_cast<int64_t>(requests.size()), std::memory_order_relaxed);
  changed_.store(true, std::memory_order_relaxed);
  batch_.Observe(rows);
  for (const TRITONBACKEND_Request* request : requests) {
    const uint64_t arrival = ArrivalOf(request);
    if (arrival != 0) queue_.Observe(Between(arrival, now));
  }
}

void InstanceMetrics::Ran(const Timing& timing, uint64_t count) {
  if (timing.compute_start == 0) return;
  wait_.Observe(Between(timing.sent, timing.compute_start), count);
  python_.Observe(Between(timing.compute_start, timing.compute_end), count);
}

void InstanceMetrics::End(const TRITONBACKEND_Request* request, uint64_t exec_start, uint64_t now) {
  Leave();
  const uint64_t arrival = ArrivalOf(request);
  request_.Observe(Between(arrival != 0 ? arrival : exec_start, now));
}

void InstanceMetrics::Leave() {
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  changed_.store(true, std::memory_order_relaxed);
}

void InstanceMetrics::CountCancelled(Cancellation cancellation, uint64_t count) {
  if (cancellation == Cancellation::kNone) return;
  cancelled_[cancellation == Cancellation::kByTimeout ? 1 : 0].fetch_add(count, std::memory_order_relaxed);
  changed_.store(true, std::memory_order_relaxed);
}

void InstanceMetrics::CountError(const std::string& error, uint64_t count) const {
  if (!error.empty()) model_->CountError(error, count);
}

ModelMetrics::ModelMetrics(const std::string& model, int64_t version)
    : labels_{{"model", model}, {"version", std::to_string(version)}} {
  LogIfError(Guarded([&] { published_ = std::make_shared<Published>(labels_); }), "cannot create a model's metrics");
}

void ModelMetrics::Add(InstanceMetrics* instance) {
  const std::lock_guard<std::mutex> lock(mutex_);
  instances_.push_back(instance);
}

void ModelMetrics::Remove(InstanceMetrics* instance) {
  const std::lock_guard<std::mutex> lock(mutex_);
  LogIfError(Guarded([&] { Publish(instance); }), "cannot publish metrics");
  instances_.erase(std::remove(instances_.begin(), instances_.end(), instance), instances_.end());
}

void ModelMetrics::CountError(const std::string& error, uint64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (published_ == nullptr || published_->in_flight == nullptr) return;
  LogIfError(Guarded([&] {
               auto found = errors_.find(error);
               if (found == errors_.end()) {
                 const std::string name = errors_.size() < kMaxErrors ? error : kOtherErrors;
                 found = errors_.find(name);
                 if (found == errors_.end()) {
                   found = errors_.try_emplace(name, AllFamilies().errors.get(), With(labels_, "error", name)).first;
                 }
               }
               pytriton::Add(&found->second, count);
             }),
             "cannot count an error");
}

void ModelMetrics::Publish(InstanceMetrics* instance) {
  if (published_ == nullptr) return;
  const auto publish = [](Histogram* histogram, const std::unique_ptr<Metric>& metric) {
    if (metric != nullptr) histogram->Publish(metric.get());
  };
  publish(&instance->request_, published_->request);
  publish(&instance->queue_, published_->queue);
  publish(&instance->wait_, published_->wait);
  publish(&instance->python_, published_->python);
  publish(&instance->batch_, published_->batch);
  for (size_t i = 0; i < instance->cancelled_.size(); ++i) {
    const uint64_t count = instance->cancelled_[i].load(std::memory_order_relaxed);
    if (published_->cancelled[i] != nullptr) {
      pytriton::Add(published_->cancelled[i].get(), count - instance->published_cancelled_[i]);
    }
    instance->published_cancelled_[i] = count;
  }
}

void ModelMetrics::Publish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (published_ == nullptr) return;
  bool is_used = false;
  for (InstanceMetrics* instance : instances_) {
    is_used = instance->changed_.exchange(false, std::memory_order_relaxed) || is_used;
  }
  unused_for_ = is_used ? 0 : std::min(unused_for_ + 1, kLastPublications + 1);
  if (unused_for_ > kLastPublications) return;
  int64_t in_flight = 0;
  int64_t streams = 0;
  bool is_decoupled = false;
  int64_t memory = 0;
  for (InstanceMetrics* instance : instances_) {
    Publish(instance);
    const int64_t requests = instance->in_flight_.load(std::memory_order_relaxed);
    in_flight += requests;
    if (instance->decoupled_.load(std::memory_order_relaxed)) {
      streams += requests;
      is_decoupled = true;
    }
    if (instance->memory_) memory += instance->memory_();
  }
  Set(published_->in_flight, in_flight);
  if (is_decoupled && published_->streams == nullptr) published_->streams = AllFamilies().streams.New(labels_);
  Set(published_->streams, streams);
  Set(published_->memory, memory);
}

std::unique_ptr<InstanceMetrics> AllModelMetrics::Join(const std::string& model, int64_t version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<ModelMetrics>& known = models_[{model, version}];
  std::shared_ptr<ModelMetrics> metrics = known.lock();
  if (metrics == nullptr) {
    metrics = std::make_shared<ModelMetrics>(model, version);
    known = metrics;
  }
  return std::make_unique<InstanceMetrics>(std::move(metrics));
}

void AllModelMetrics::Publish() {
  std::vector<std::shared_ptr<ModelMetrics>> models;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto each = models_.begin(); each != models_.end();) {
      std::shared_ptr<ModelMetrics> model = each->second.lock();
      if (model == nullptr) {
        each = models_.erase(each);
      } else {
        models.push_back(std::move(model));
        ++each;
      }
    }
  }
  for (const std::shared_ptr<ModelMetrics>& model : models) {
    LogIfError(Guarded([&] { model->Publish(); }), "cannot publish a model's metrics");
  }
}

}  // namespace pytriton
