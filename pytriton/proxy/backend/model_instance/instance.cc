#include "model_instance/instance.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "model_instance/held_responses.h"
#include "model_instance/registry_client.h"
#include "python_models/python_backend.h"
#include "triton/cancellation.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr int kLoadTimeoutMs = 10000;
constexpr int kReconnectTimeoutMs = 500;  // requests are waiting
constexpr uint64_t kStartTimeoutNs = 30'000'000'000;
constexpr std::chrono::milliseconds kRetryInterval(100);
constexpr std::chrono::milliseconds kPause(10);
constexpr int kNoService = -1;  // its process has one
constexpr char kBuildsBatches[] = "pytriton_builds_batches";

// The number of batches in the warm-up of each instance.
int CountWarmups(const Json& config) {
  int count = 0;
  for (const Json& warmup : config["model_warmup"].items()) {
    count += std::max(std::atoi(warmup["count"].text().c_str()), 1);
  }
  return count;
}

// Whether requests may have other inputs than others have, or other shapes.
bool HasVariableInputs(const Json& config) {
  const std::vector<Json>& inputs = config["input"].items();
  return std::any_of(inputs.begin(), inputs.end(), [](const Json& input) {
    const std::vector<Json>& dims = input["dims"].items();
    return input["optional"].text() == "true" ||
           std::any_of(dims.begin(), dims.end(), [](const Json& dim) { return dim.text() == "-1"; });
  });
}

// Whether the model's queue has limits, timeouts or priorities.
bool HasQueuePolicy(const Json& config) {
  const Json& batcher = config["dynamic_batching"];
  return !batcher["default_queue_policy"].is_missing() || std::atoi(batcher["priority_levels"].text().c_str()) > 0;
}

// Reports a batch to the guard, if the server has one.
class ReportedBatch {
 public:
  explicit ReportedBatch(int instance_count) {
    if (PYTRITON_BatchBegins != nullptr) PYTRITON_BatchBegins(instance_count);
  }
  ~ReportedBatch() {
    if (PYTRITON_BatchEnds != nullptr) PYTRITON_BatchEnds();
  }
  ReportedBatch(const ReportedBatch&) = delete;
  ReportedBatch& operator=(const ReportedBatch&) = delete;
};

// The number of dimensions that requests have for each of the model's inputs, the batch among them.
std::vector<uint32_t> InputRanks(const std::string& config_text, const AdmissionMessage& model) {
  std::vector<uint32_t> ranks(model.inputs.size(), 0);
  if (!model.batching) return ranks;
  const Json config = Json::Parse(config_text);
  for (const Json& input : config["input"].items()) {
    const auto found = std::find(model.inputs.begin(), model.inputs.end(), input["name"].text());
    if (found == model.inputs.end()) continue;
    const Json& dims = input["reshape"].is_missing() ? input["dims"] : input["reshape"]["shape"];
    ranks[found - model.inputs.begin()] = static_cast<uint32_t>(dims.items().size()) + 1;
  }
  return ranks;
}

}  // namespace

Instance::Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, ServiceThread* services,
                   AllModelMetrics* metrics, WorkerPool* pool, std::atomic<int>* instance_count,
                   std::unique_ptr<WorkerSupervisor> supervisor)
    : instance_(instance),
      on_connect_(std::move(on_connect)),
      services_(services),
      pool_(pool),
      instance_count_(instance_count),
      statistics_(instance),
      supervisor_(std::move(supervisor)) {
  const char* name = nullptr;
  Check(TRITONBACKEND_ModelInstanceName(instance, &name));
  identity_.instance = name;
  TRITONBACKEND_Model* model = nullptr;
  Check(TRITONBACKEND_ModelInstanceModel(instance, &model));
  Check(TRITONBACKEND_ModelServer(model, &server_));
  Check(TRITONBACKEND_ModelName(model, &name));
  identity_.model = name;
  uint64_t version = 0;
  Check(TRITONBACKEND_ModelVersion(model, &version));
  identity_.version = static_cast<int64_t>(version);
  identity_.config = ConfigOf(model);
  metrics_ = metrics->Join(identity_.model, identity_.version);
  if (supervisor_ == nullptr) {
    TRITONBACKEND_ArtifactType type;
    const char* folder = nullptr;
    Check(TRITONBACKEND_ModelRepository(model, &type, &folder));
    ReadWorkerFile(std::string(folder) + "/" + std::to_string(version) + "/worker");
  } else {
    ReadConfig();
  }
  const Json config = Json::Parse(identity_.config);
  if (PYTRITON_ExpectLostWakeUps != nullptr && HasQueuePolicy(config)) PYTRITON_ExpectLostWakeUps();
  if (!config["parameters"][kBuildsBatches].is_missing()) {
    builder_ =
        std::make_unique<BatchBuilder>(std::atoi(config["max_batch_size"].text().c_str()), HasVariableInputs(config));
  }
  warmups_left_ = CountWarmups(config);
  warmup_ = std::make_unique<WarmupGuard>(warmups_left_);
  Connect(kLoadTimeoutMs, [] { return true; });
  instance_count_->fetch_add(1);
}

Instance::~Instance() {
  if (builder_ != nullptr) ExecuteBuilt();  // it has been removed from its model before it was idle
  instance_count_->fetch_sub(1);
  if (is_shared_) pool_->Remove(&worker_);
}

void Instance::ReadWorkerFile(const std::string& path) {
  const WorkerFile file = WorkerFile::Read(path);
  registry_ = file.registry;
  controller_ = file.controller;
  identity_.binding = file.binding;
  cached_output_ = file.cached_output;
}

void Instance::ReadConfig() {
  const Json config = Json::Parse(identity_.config);
  const std::vector<Json>& outputs = config["output"].items();
  if (config["response_cache"]["enable"].text() == "true" && !outputs.empty()) {
    cached_output_ = outputs[0]["name"].text();
  }
}

std::shared_ptr<Connection> Instance::ConnectToKept(const std::function<bool()>& wanted) const {
  const auto deadline = WorkerSupervisor::Clock::now() + supervisor_->timeout();
  while (true) {
    AdmissionMessage admission = supervisor_->IssueTicket(deadline, wanted);
    try {
      return std::make_shared<Connection>(std::move(admission), kNoService);
    } catch (const ChannelError&) {
      if (WorkerSupervisor::Clock::now() > deadline || !wanted()) throw;
      std::this_thread::sleep_for(kPause);  // its process has just exited, and is being restarted
    }
  }
}

std::shared_ptr<Connection> Instance::ConnectToBound(int service_fd, int timeout_ms,
                                                     const std::function<bool()>& wanted) {
  const uint64_t start = MonotonicNs();
  while (true) {
    RegistrationReply reply = Register(registry_, identity_, timeout_ms);
    try {
      if (reply.admission.has_value()) {
        auto connection = std::make_shared<Connection>(std::move(*reply.admission), service_fd);
        if (reply.restart_counter.has_value()) Count(*reply.restart_counter);
        return connection;
      }
    } catch (const ChannelError& error) {
      if (!reply.restart_counter.has_value()) throw;
      reply.reason = error.what();  // its process has exited since
    }
    if (MonotonicNs() - start > kStartTimeoutNs || !wanted()) throw RegistrationError(reply.reason);
    // Meanwhile this instance is busy to Triton, which sends requests to other instances.
    std::this_thread::sleep_for(kRetryInterval);
  }
}

void Instance::Connect(int timeout_ms, const std::function<bool()>& wanted) {
  executor_.reset();
  if (supervisor_ != nullptr) {
    worker_.connection = ConnectToKept(wanted);
    worker_.service = supervisor_->service();
  } else {
    FileDescriptor worker_end;
    worker_.service = services_->Open(server_, identity_.model, identity_.version, &worker_end);
    worker_.connection = ConnectToBound(worker_end.get(), timeout_ms, wanted);
    services_->ConnectController(server_, controller_);
  }
  const std::string& gpu_failure = worker_.connection->gpu_failure();
  if (!gpu_failure.empty()) {
    Log(TRITONSERVER_LOG_WARN,
        "model '" + identity_.model + "': tensors of a GPU are copied to memory: " + gpu_failure);
  }
  input_ranks_ = InputRanks(identity_.config, worker_.connection->model());
  worker_.service->SetCapacity(worker_.connection->model().max_in_flight);
  metrics_->SetDecoupled(worker_.connection->model().decoupled);
  metrics_->SetMemory([connection = std::weak_ptr<Connection>(worker_.connection)] {
    const std::shared_ptr<Connection> living = connection.lock();
    return living == nullptr ? 0 : living->SharedMemoryBytes();
  });
  is_sequential_ = worker_.connection->model().mode == ExecutionMode::kSequential;
  if (!is_sequential_) {
    if (is_shared_) throw RegistrationError("its function has become one of another kind");
    executor_ = std::make_unique<ConcurrentExecutor>(worker_.connection, instance_, identity_.model, cached_output_,
                                                     warmup_.get(), worker_.service, input_ranks_, metrics_.get());
  }
  if (supervisor_ == nullptr) {
    client_process_ = std::make_shared<ClientProcessWatch>(worker_.connection->TakeProcess(), server_, identity_.model);
  }
  on_connect_(worker_.connection->arena(), client_process_);
}

void Instance::Count(int64_t restart_counter) {
  if (restart_counter_ == nullptr) {
    restart_counter_ = std::make_unique<RestartCounter>(identity_.model, identity_.version, identity_.instance);
  } else {
    restart_counter_->Add(restart_counter - restarts_seen_);
  }
  restarts_seen_ = restart_counter;
}

bool Instance::alive() const { return executor_ != nullptr ? executor_->alive() : worker_.alive(); }

void Instance::ShareWorker() {
  if (supervisor_ != nullptr || !is_sequential_) return;
  pool_->Add(&worker_);
  is_shared_ = true;
}

std::optional<WorkerPool::Lease> Instance::TakeLiveWorker() {
  if (is_shared_) return pool_->TakeLast(&worker_);
  return alive() ? std::optional<WorkerPool::Lease>(&worker_) : std::nullopt;
}

WorkerPool::Lease Instance::TakeOwnWorker() { return is_shared_ ? pool_->Take(&worker_) : WorkerPool::Lease(&worker_); }

void Instance::Execute(TRITONBACKEND_Request** requests, uint32_t request_count) {
  if (builder_ == nullptr || warmups_left_ > 0) return ExecuteBatch(requests, request_count);
  for (uint32_t i = 0; i < request_count; ++i) AddToBatch(requests[i]);
}

void Instance::AddToBatch(TRITONBACKEND_Request* request) {
  if (!builder_->Add(request)) {
    ExecuteBuilt();
    builder_->Add(request);
  }
  if (builder_->is_full() || !ExecutesWhenIdle()) ExecuteBuilt();
}

bool Instance::ExecutesWhenIdle() {
  const auto execute = [](void* instance) { static_cast<Instance*>(instance)->ExecuteIdle(); };
  if (PYTRITON_CallWhenIdle != nullptr && PYTRITON_CallWhenIdle(execute, this)) return true;
  if (!is_warned_) {
    Log(TRITONSERVER_LOG_WARN, "model '" + identity_.model +
                                   "': each request is a batch, as the guard does not notice when the server is idle; "
                                   "set PYTRITON_BATCHING=0");
  }
  is_warned_ = true;
  return false;
}

void Instance::ExecuteIdle() {
  if (builder_->ExpectsMore() && ExecutesWhenIdle()) {
    std::this_thread::yield();  // to threads that are reading them
  } else {
    ExecuteBuilt();
  }
}

void Instance::ExecuteBuilt() noexcept {
  std::vector<TRITONBACKEND_Request*> requests = builder_->Take();
  std::vector<TRITONBACKEND_Request*> cancelled;
  const auto moves = [&cancelled](TRITONBACKEND_Request* request) {
    if (!IsCancelled(request)) return false;
    cancelled.push_back(request);
    return true;
  };
  requests.erase(std::remove_if(requests.begin(), requests.end(), moves), requests.end());
  if (!requests.empty()) ExecuteBatch(requests.data(), static_cast<uint32_t>(requests.size()));
  RejectCancelled(cancelled);
}

// Last, as Triton may still be handling a client's departure (late-responses).
void Instance::RejectCancelled(const std::vector<TRITONBACKEND_Request*>& requests) const {
  if (requests.empty()) return;
  metrics_->CountCancelled(Cancellation::kByClient, requests.size());
  const std::string reason = "model '" + identity_.model + "': " + Reason(Cancellation::kByClient);
  const HeldResponses held(requests, cached_output_);
  for (TRITONBACKEND_Request* request : requests) Reject(request, Code(Cancellation::kByClient), reason);
}

void Instance::ExecuteBatch(TRITONBACKEND_Request** requests, uint32_t request_count) {
  const uint64_t start = MonotonicNs();
  const ReportedBatch reported(executor_ == nullptr ? instance_count_->load() : 0);
  const NotificationKind kind = warmups_left_ > 0 ? NotificationKind::kWarmup : NotificationKind::kBatch;
  if (kind == NotificationKind::kWarmup) {
    --warmups_left_;
  } else if (!is_shared_) {
    ShareWorker();
  }
  const auto is_any_wanted = [&] {
    return std::any_of(requests, requests + request_count,
                       [&](auto* request) { return CancellationOf(request, start) == Cancellation::kNone; });
  };
  // Twice: the worker may have gone before it is notified of the batch.
  for (int i = 0; i < 2; ++i) {
    std::optional<WorkerPool::Lease> worker = TakeLiveWorker();
    if (!worker.has_value()) {
      worker.emplace(TakeOwnWorker());
      try {
        if (!alive()) Connect(kReconnectTimeoutMs, is_any_wanted);
      } catch (const std::exception& error) {
        worker_.connection.reset();
        const std::string reason = "model '" + identity_.model + "' has no worker: " + error.what();
        for (uint32_t j = 0; j < request_count; ++j) {
          const Cancellation cancellation = CancellationOf(requests[j], start);
          const bool is_wanted = cancellation == Cancellation::kNone;
          metrics_->CountCancelled(cancellation);
          Reject(requests[j], is_wanted ? TRITONSERVER_ERROR_UNAVAILABLE : Code(cancellation),
                 is_wanted ? reason : "model '" + identity_.model + "': " + Reason(cancellation));
        }
        return warmup_->Done(false);
      }
    }
    if (executor_ == nullptr) return ExecuteOne(kind, worker->get(), requests, request_count);
    if (executor_->Submit(kind, requests, request_count)) return;
  }
  const std::string reason = "model '" + identity_.model + "': the worker has gone";
  for (uint32_t i = 0; i < request_count; ++i) Reject(requests[i], TRITONSERVER_ERROR_UNAVAILABLE, reason);
}

void Instance::CheckReady() const {
  if (supervisor_ == nullptr) return;
  try {
    supervisor_->CheckReady();
  } catch (const std::exception& error) {
    throw TritonError(TRITONSERVER_ERROR_UNAVAILABLE, "model '" + identity_.model + "': " + error.what());
  }
}

void Instance::ExecuteOne(NotificationKind kind, ConnectedWorker* worker, TRITONBACKEND_Request** requests,
                          uint32_t request_count) {
  Timing timing;
  timing.exec_start = MonotonicNs();
  const std::shared_ptr<Connection> connection =
      worker->connection;  // a failure below resets it before the batch is done
  Batch batch(connection->model(), input_ranks_, requests, request_count);
  const HeldResponses held(batch, cached_output_);
  for (const Rejection& rejection : batch.rejections()) {
    Reject(rejection.request, rejection.code, "model '" + identity_.model + "': " + rejection.reason);
  }
  if (batch.requests().empty()) return warmup_->Done(false);
  if (!batch.call_chain().empty()) worker->service->Began(0, batch.call_chain());
  InstanceMetrics* metrics = kind == NotificationKind::kBatch ? metrics_.get() : nullptr;
  if (metrics != nullptr) metrics->Begin(batch.requests(), batch.total_rows(), timing.exec_start);
  const std::vector<Outcome> outcomes = Infer(kind, worker, &batch, &timing);
  if (!batch.call_chain().empty()) worker->service->Ended(0);
  const uint64_t exec_end = MonotonicNs();
  if (metrics != nullptr) metrics->Ran(timing, batch.requests().size());
  bool any = false;
  for (size_t i = 0; i < batch.requests().size(); ++i) {
    any = any || outcomes[i] != Outcome::kFailed;
    if (outcomes[i] == Outcome::kRescheduled) {
      if (metrics != nullptr) metrics->Leave();
      continue;
    }
    if (metrics != nullptr) metrics->End(batch.requests()[i], timing.exec_start, exec_end);
    statistics_.Close(batch.requests()[i], outcomes[i] == Outcome::kSucceeded, timing, exec_end);
  }
  if (any) statistics_.CloseBatch(batch.total_rows(), timing, exec_end);
  warmup_->Done(std::find(outcomes.begin(), outcomes.end(), Outcome::kFailed) == outcomes.end());
}

std::vector<Outcome> Instance::Infer(NotificationKind kind, ConnectedWorker* worker, Batch* batch, Timing* timing) {
  try {
    Connection* const connection = worker->connection.get();
    int64_t size = 0;
    const Block block = batch->Write(connection->arena().get(), connection->device_arena(), &size);
    uint64_t left = 0;  // requests whose client has gone
    uint64_t late = 0;  // and those whose timeout has passed
    timing->sent = MonotonicNs();
    const Notification notification = connection->RoundTrip(kind, batch->requests().size(), block.offset, size, [&] {
      left = late = 0;
      for (size_t i = 0; i < batch->requests().size(); ++i) {
        const Cancellation cancellation = CancellationOf(batch->requests()[i], timing->exec_start);
        if (cancellation == Cancellation::kNone) continue;
        ++(cancellation == Cancellation::kByTimeout ? late : left);
        batch->Cancel(i);
      }
    });
    if (PYTRITON_BatchHasResults != nullptr) PYTRITON_BatchHasResults();
    metrics_->CountCancelled(Cancellation::kByClient, left);
    metrics_->CountCancelled(Cancellation::kByTimeout, late);
    const char* message = connection->worker_arena().At(notification.offset, notification.size);
    MessageReader reader(message, notification.size);
    const ResultMessage result = DecodeResult(&reader);
    timing->compute_start = result.compute_start_ns;
    timing->compute_end = result.compute_end_ns;
    ReportFailures(result.failures, batch->requests().size(), *metrics_);
    std::vector<Outcome> outcomes = Respond(*batch, connection, result, message + reader.data_offset(), cached_output_);
    connection->worker_arena().Release(notification.offset);
    return outcomes;
  } catch (const ChannelError& error) {
    worker->connection.reset();
    return Fail(*batch, TRITONSERVER_ERROR_UNAVAILABLE, error.what());
  } catch (const ProtocolError& error) {
    worker->connection.reset();
    return Fail(*batch, TRITONSERVER_ERROR_INTERNAL, error.what());
  } catch (const std::exception& error) {
    return Fail(*batch, TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

std::vector<Outcome> Instance::Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const {
  const std::string message = "model '" + identity_.model + "': " + reason;
  Log(TRITONSERVER_LOG_ERROR, message);
  for (TRITONBACKEND_Request* request : batch.requests()) RespondError(request, code, message, cached_output_);
  return std::vector<Outcome>(batch.requests().size(), Outcome::kFailed);
}

void Instance::Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& reason) const {
  RespondError(request, code, reason, cached_output_);
  statistics_.Close(request, false, Timing(), 0);
}

}  // namespace pytriton
