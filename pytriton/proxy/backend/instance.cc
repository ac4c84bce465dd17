#include "instance.h"

#include <algorithm>
#include <utility>

#include "cancellation.h"
#include "registration.h"
#include "triton_error.h"

namespace pytriton {

namespace {

constexpr int kLoadTimeoutMs = 10000;
constexpr int kReconnectTimeoutMs = 500;  // requests are waiting

std::string ConfigOf(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* config = nullptr;
  Check(TRITONBACKEND_ModelConfig(model, 1, &config));
  const char* json = nullptr;
  size_t size = 0;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(config, &json, &size);
  std::string text = error == nullptr ? std::string(json, size) : std::string();
  LogIfError(TRITONSERVER_MessageDelete(config), "cannot delete a model configuration");
  Check(error);
  return text;
}

}  // namespace

Instance::Instance(TRITONBACKEND_ModelInstance* instance, Observer on_connect, Services* services)
    : instance_(instance), on_connect_(std::move(on_connect)), services_(services), accounts_(instance) {
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
  TRITONBACKEND_ArtifactType type;
  const char* folder = nullptr;
  Check(TRITONBACKEND_ModelRepository(model, &type, &folder));
  const WorkerFile file = WorkerFile::Read(std::string(folder) + "/" + std::to_string(version) + "/worker");
  registry_ = file.registry;
  identity_.binding = file.binding;
  cached_output_ = file.cached_output;
  warmup_ = std::make_unique<WarmupGuard>(file.warmups);
  Connect(kLoadTimeoutMs);
}

void Instance::Connect(int timeout_ms) {
  pipeline_.reset();
  FileDescriptor worker_end;
  service_ = services_->Open(server_, identity_.model, identity_.version, &worker_end);
  connection_ = std::make_shared<Connection>(Register(registry_, identity_, timeout_ms), worker_end.get());
  service_->SetCapacity(std::max<int64_t>(1, connection_->model().in_flight));
  if (connection_->model().in_flight > 0) {
    pipeline_ =
        std::make_unique<Pipeline>(connection_, instance_, identity_.model, cached_output_, warmup_.get(), service_);
  }
  owner_ = std::make_shared<Owner>(connection_->process(), server_, identity_.model);
  on_connect_(connection_->arena(), owner_);
}

bool Instance::alive() const {
  if (connection_ == nullptr) return false;
  return pipeline_ != nullptr ? pipeline_->alive() : connection_->alive();
}

void Instance::Execute(TRITONBACKEND_Request** requests, uint32_t request_count) {
  // Twice: the worker may be gone before it is told of the batch.
  for (int i = 0; i < 2; ++i) {
    if (!alive()) {
      try {
        Connect(kReconnectTimeoutMs);
      } catch (const std::exception& error) {
        connection_.reset();
        const std::string reason = "model '" + identity_.model + "' has no worker: " + error.what();
        for (uint32_t j = 0; j < request_count; ++j) Reject(requests[j], TRITONSERVER_ERROR_UNAVAILABLE, reason);
        return warmup_->Done(false);
      }
    }
    if (pipeline_ == nullptr) return ExecuteOne(requests, request_count);
    if (pipeline_->Launch(requests, request_count)) return;
  }
  const std::string reason = "model '" + identity_.model + "': the worker is gone";
  for (uint32_t i = 0; i < request_count; ++i) Reject(requests[i], TRITONSERVER_ERROR_UNAVAILABLE, reason);
}

void Instance::ExecuteOne(TRITONBACKEND_Request** requests, uint32_t request_count) {
  Timing timing;
  timing.exec_start = Now();
  const std::shared_ptr<Connection> connection = connection_;  // a failure below drops it before the batch is done
  Batch batch(connection->model(), requests, request_count);
  for (const Rejection& rejection : batch.rejections()) {
    Reject(rejection.request, rejection.code, "model '" + identity_.model + "': " + rejection.reason);
  }
  if (batch.requests().empty()) return warmup_->Done(false);
  if (!batch.callers().empty()) service_->Began(0, batch.callers());
  const std::vector<bool> succeeded = Infer(connection.get(), &batch, &timing);
  if (!batch.callers().empty()) service_->Ended(0);
  const uint64_t exec_end = Now();
  bool any = false;
  for (size_t i = 0; i < batch.requests().size(); ++i) {
    any = any || succeeded[i];
    accounts_.Close(batch.requests()[i], succeeded[i], timing, exec_end);
  }
  if (any) accounts_.CloseBatch(batch.total_rows(), timing, exec_end);
  warmup_->Done(std::find(succeeded.begin(), succeeded.end(), false) == succeeded.end());
}

std::vector<bool> Instance::Infer(Connection* connection, Batch* batch, Timing* timing) {
  try {
    int64_t size = 0;
    const Block block = batch->Write(connection->arena().get(), &size);
    const Bell bell = connection->RoundTrip(block.offset, size, [&] {
      for (size_t i = 0; i < batch->requests().size(); ++i) {
        if (CancellationOf(batch->requests()[i], timing->exec_start) != Cancellation::kNone) batch->Cancel(i);
      }
    });
    const char* message = connection->worker_arena().At(bell.offset, bell.size);
    MessageReader reader(message, bell.size);
    const ResultMessage result = DecodeResult(&reader);
    timing->compute_start = result.compute_start_ns;
    timing->compute_end = result.compute_end_ns;
    for (const Failure& failure : result.failures) {
      if (!failure.detail.empty()) Log(TRITONSERVER_LOG_ERROR, failure.detail);
    }
    std::vector<bool> succeeded =
        Respond(*batch, connection->model(), result, message + reader.data_offset(), cached_output_);
    connection->worker_arena().Release(bell.offset);
    return succeeded;
  } catch (const ChannelError& error) {
    connection_.reset();
    return Fail(*batch, TRITONSERVER_ERROR_UNAVAILABLE, error.what());
  } catch (const ProtocolError& error) {
    connection_.reset();
    return Fail(*batch, TRITONSERVER_ERROR_INTERNAL, error.what());
  } catch (const std::exception& error) {
    return Fail(*batch, TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

std::vector<bool> Instance::Fail(const Batch& batch, TRITONSERVER_Error_Code code, const std::string& reason) const {
  const std::string message = "model '" + identity_.model + "': " + reason;
  Log(TRITONSERVER_LOG_ERROR, message);
  for (TRITONBACKEND_Request* request : batch.requests()) RespondError(request, code, message, cached_output_);
  return std::vector<bool>(batch.requests().size(), false);
}

void Instance::Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& reason) const {
  RespondError(request, code, reason, cached_output_);
  accounts_.Close(request, false, Timing(), 0);
}

}  // namespace pytriton
