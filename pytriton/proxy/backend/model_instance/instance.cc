#include "model_instance/instance.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "model_instance/held_responses.h"
#include "triton/cancellation.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr int kLoadTimeoutMs = 10000;
constexpr int kReconnectTimeoutMs = 500;  // requests are waiting
constexpr uint64_t kStartTimeoutNs = 30'000'000'000;
// For a process that is being restarted. A server that is restarted, too, is not ready for any model until it has
// loaded all of them.
constexpr uint64_t kMaxLoadDelayNs = 1'000'000'000;
constexpr std::chrono::milliseconds kRetryInterval(100);
constexpr std::chrono::milliseconds kReconnectInterval(10);
constexpr int kNoService = -1;  // its process has its own

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

TRITONBACKEND_Model* ModelOf(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = nullptr;
  Check(TRITONBACKEND_ModelInstanceModel(instance, &model));
  return model;
}

// The worker file of a bound model's version.
WorkerFile ReadWorkerFile(TRITONBACKEND_Model* model) {
  uint64_t version = 0;
  Check(TRITONBACKEND_ModelVersion(model, &version));
  TRITONBACKEND_ArtifactType type;
  const char* folder = nullptr;
  Check(TRITONBACKEND_ModelRepository(model, &type, &folder));
  return WorkerFile::Read(std::string(folder) + "/" + std::to_string(version) + "/worker");
}

RegistrationMessage IdentityOf(TRITONBACKEND_ModelInstance* instance, const ModelConfig& config,
                               const WorkerFile& worker_file) {
  TRITONBACKEND_Model* const model = ModelOf(instance);
  RegistrationMessage identity;
  identity.binding = worker_file.binding;
  const char* name = nullptr;
  Check(TRITONBACKEND_ModelInstanceName(instance, &name));
  identity.instance = name;
  Check(TRITONBACKEND_ModelName(model, &name));
  identity.model = name;
  uint64_t version = 0;
  Check(TRITONBACKEND_ModelVersion(model, &version));
  identity.version = static_cast<int64_t>(version);
  identity.config = config.json();
  return identity;
}

}  // namespace

Instance::Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, ServiceThread* services,
                   AllModelMetrics* metrics, WorkerPool* pool, std::atomic<int>* instance_count,
                   std::unique_ptr<WorkerSupervisor> supervisor)
    : on_connect_(std::move(on_connect)),
      services_(services),
      pool_(pool),
      instance_count_(instance_count),
      supervisor_(std::move(supervisor)),
      config_(ModelConfig::Of(ModelOf(instance))),
      worker_file_(supervisor_ == nullptr ? ReadWorkerFile(ModelOf(instance)) : WorkerFile()),
      identity_(IdentityOf(instance, config_, worker_file_)),
      context_{identity_.model, RequestStatistics(instance),
               RequestResponder(supervisor_ == nullptr ? worker_file_.cached_output : config_.CachedOutput()),
               std::make_unique<WarmupGuard>(config_.WarmupCount()), metrics->Join(identity_.model, identity_.version)},
      warmups_left_(config_.WarmupCount()),
      sequential_executor_(&context_) {
  Check(TRITONBACKEND_ModelServer(ModelOf(instance), &server_));
  if (PYTRITON_ExpectLostWakeUps != nullptr && config_.HasQueuePolicy()) PYTRITON_ExpectLostWakeUps();
  if (config_.IsBatchedByBackend()) {
    builder_ = std::make_unique<BatchBuilder>(config_.max_batch_size(), config_.HasVariableInputs());
  }
  ConnectAtLoad();
  instance_count_->fetch_add(1);
}

Instance::~Instance() {
  if (builder_ != nullptr) ExecuteBuilt(false);  // it has been removed from its model before it was idle
  instance_count_->fetch_sub(1);
  if (is_shared_) pool_->Remove(&worker_);
}

void Instance::ConnectAtLoad() {
  const bool needs_worker = supervisor_ != nullptr || warmups_left_ > 0;
  const uint64_t start = MonotonicNs();
  try {
    Connect(kLoadTimeoutMs, [&] { return needs_worker || MonotonicNs() - start < kMaxLoadDelayNs; });
  } catch (const WorkerUnavailable& error) {
    if (needs_worker) throw;
    Log(TRITONSERVER_LOG_WARN, context_.Describe("requests to it wait, since " + std::string(error.what())));
  }
}

std::shared_ptr<Connection> Instance::ConnectToSupervised(const std::function<bool()>& wanted) const {
  const auto deadline = WorkerSupervisor::Clock::now() + supervisor_->timeout();
  while (true) {
    AdmissionMessage admission = supervisor_->IssueTicket(deadline, wanted);
    try {
      return std::make_shared<Connection>(std::move(admission), kNoService);
    } catch (const ChannelError&) {
      if (WorkerSupervisor::Clock::now() > deadline || !wanted()) throw;
      std::this_thread::sleep_for(kReconnectInterval);  // its process has just exited, and is being restarted
    }
  }
}

std::shared_ptr<Connection> Instance::ConnectToBound(int service_fd, int timeout_ms,
                                                     const std::function<bool()>& wanted) {
  const uint64_t start = MonotonicNs();
  while (true) {
    RegistrationReply reply = Register(worker_file_.registry, identity_, timeout_ms);
    try {
      if (reply.admission.has_value()) {
        auto connection = std::make_shared<Connection>(std::move(*reply.admission), service_fd);
        if (reply.restart_count.has_value()) CountRestarts(*reply.restart_count);
        return connection;
      }
    } catch (const ChannelError& error) {
      if (!reply.restart_count.has_value()) throw;
      reply.reason = error.what();  // its process has exited since
    }
    if (MonotonicNs() - start > kStartTimeoutNs || !wanted()) throw WorkerUnavailable(reply.reason);
    // Meanwhile, Triton considers this instance busy, and sends requests to other instances.
    std::this_thread::sleep_for(kRetryInterval);
  }
}

void Instance::Connect(int timeout_ms, const std::function<bool()>& wanted) {
  concurrent_executor_.reset();
  if (supervisor_ != nullptr) {
    worker_.connection = ConnectToSupervised(wanted);
    worker_.service = supervisor_->service();
  } else {
    FileDescriptor worker_end;
    worker_.service = services_->Open(server_, identity_.model, identity_.version, &worker_end);
    worker_.connection = ConnectToBound(worker_end.get(), timeout_ms, wanted);
    services_->ConnectController(server_, worker_file_.controller);
  }
  const std::string& gpu_failure = worker_.connection->gpu_failure();
  if (!gpu_failure.empty()) {
    Log(TRITONSERVER_LOG_WARN, context_.Describe("tensors of a GPU are copied to memory: " + gpu_failure));
  }
  const AdmissionMessage& model = worker_.connection->model();
  context_.input_ranks = model.batching ? config_.InputRanks(model.inputs) : std::vector<uint32_t>(model.inputs.size());
  worker_.service->SetCapacity(model.max_in_flight);
  context_.metrics->SetDecoupled(model.decoupled);
  context_.metrics->SetMemory([connection = std::weak_ptr<Connection>(worker_.connection)] {
    const std::shared_ptr<Connection> living = connection.lock();
    return living == nullptr ? 0 : living->SharedMemoryBytes();
  });
  if (model.mode != ExecutionMode::kSequential && is_shared_) {
    throw RegistrationError("its function is now of another kind");
  }
  mode_ = model.mode;
  if (mode_ != ExecutionMode::kSequential) {
    concurrent_executor_ = std::make_unique<ConcurrentExecutor>(worker_.connection, worker_.service, &context_);
  }
  if (supervisor_ == nullptr) {
    client_process_ = std::make_shared<ClientProcessWatch>(worker_.connection->TakeProcess(), server_, identity_.model);
  }
  on_connect_(worker_.connection->arena(), client_process_);
}

void Instance::CountRestarts(int64_t restart_count) {
  if (restart_counter_ == nullptr) {
    restart_counter_ = std::make_unique<RestartCounter>(identity_.model, identity_.version, identity_.instance);
  } else {
    restart_counter_->Add(restart_count - restarts_seen_);
  }
  restarts_seen_ = restart_count;
}

bool Instance::alive() const {
  return concurrent_executor_ != nullptr ? concurrent_executor_->alive() : worker_.alive();
}

void Instance::ShareWorker() {
  if (supervisor_ != nullptr || worker_.connection == nullptr || mode_ != ExecutionMode::kSequential) return;
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
  request_wait_.End();
  if (!builder_->Add(request)) {
    ExecuteBuilt(true);
    builder_->Add(request);
  }
  if (builder_->is_full() || !ExecutesWhenIdle()) ExecuteBuilt(true);
}

bool Instance::ExecutesWhenIdle() {
  const auto execute = [](void* instance) { static_cast<Instance*>(instance)->ExecuteIdle(); };
  if (PYTRITON_CallWhenIdle != nullptr && PYTRITON_CallWhenIdle(execute, this)) return true;
  if (!is_warned_) {
    Log(TRITONSERVER_LOG_WARN,
        context_.Describe("each request is a batch, as the guard does not notice when the server is idle; set "
                          "PYTRITON_BATCHING=0"));
  }
  is_warned_ = true;
  return false;
}

void Instance::ExecuteIdle() {
  if (builder_->is_empty()) return AwaitRequest();
  if (builder_->ExpectsMore() && ExecutesWhenIdle()) {
    std::this_thread::yield();  // to threads that may still be reading requests
    return;
  }
  const size_t size = builder_->size();
  ExecuteBuilt(false);
  if (request_wait_.Begin(size) && !ExecutesWhenIdle()) request_wait_.Sleep();
}

void Instance::AwaitRequest() {
  if (request_wait_.GoOn() && !ExecutesWhenIdle()) request_wait_.Sleep();
}

void Instance::ExecuteBuilt(bool has_more) noexcept {
  if (mode_ == ExecutionMode::kSequential && instance_count_->load() > 1) context_.hold->Begin(has_more);
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

// Last, because Triton may still be handling a client's disconnection (late-responses).
void Instance::RejectCancelled(const std::vector<TRITONBACKEND_Request*>& requests) const {
  if (requests.empty()) return;
  context_.metrics->CountCancelled(Cancellation::kByClient, requests.size());
  const std::string reason = context_.Describe(Reason(Cancellation::kByClient));
  const HeldResponses held(requests, context_.responder.cached_output());
  for (TRITONBACKEND_Request* request : requests) context_.Reject(request, Code(Cancellation::kByClient), reason);
}

void Instance::ExecuteBatch(TRITONBACKEND_Request** requests, uint32_t request_count) {
  const uint64_t start = MonotonicNs();
  const ReportedBatch reported(mode_ == ExecutionMode::kSequential ? instance_count_->load() : 0);
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
  // Twice: the worker may have disconnected before it is notified of the batch.
  for (int i = 0; i < 2; ++i) {
    std::optional<WorkerPool::Lease> worker = TakeLiveWorker();
    if (!worker.has_value()) {
      context_.hold->End();  // it may have to wait for its worker
      worker.emplace(TakeOwnWorker());
      try {
        if (!alive()) Connect(kReconnectTimeoutMs, is_any_wanted);
      } catch (const std::exception& error) {
        worker_.connection.reset();
        RejectAll(requests, request_count, start, "model '" + identity_.model + "' has no worker: " + error.what());
        return context_.warmup->Done(false);
      }
    }
    if (mode_ == ExecutionMode::kSequential) {
      return sequential_executor_.Execute(kind, worker->get(), requests, request_count);
    }
    if (concurrent_executor_->Submit(kind, requests, request_count)) return;
  }
  const std::string reason = context_.Describe("the worker has gone");
  for (uint32_t i = 0; i < request_count; ++i) context_.Reject(requests[i], TRITONSERVER_ERROR_UNAVAILABLE, reason);
}

void Instance::RejectAll(TRITONBACKEND_Request** requests, uint32_t request_count, uint64_t exec_start,
                         const std::string& reason) const {
  for (uint32_t i = 0; i < request_count; ++i) {
    const Cancellation cancellation = CancellationOf(requests[i], exec_start);
    const bool is_wanted = cancellation == Cancellation::kNone;
    context_.metrics->CountCancelled(cancellation);
    context_.Reject(requests[i], is_wanted ? TRITONSERVER_ERROR_UNAVAILABLE : Code(cancellation),
                    is_wanted ? reason : context_.Describe(Reason(cancellation)));
  }
}

void Instance::CheckReady() const {
  if (supervisor_ == nullptr) return;
  try {
    supervisor_->CheckReady();
  } catch (const std::exception& error) {
    throw TritonError(TRITONSERVER_ERROR_UNAVAILABLE, context_.Describe(error.what()));
  }
}

}  // namespace pytriton
