// The functions that Triton calls in a backend.
#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/heap_settings.h"
#include "base/json.h"
#include "maintenance_thread.h"
#include "model_instance/instance.h"
#include "model_instance/worker_pool.h"
#include "python_models/python_backend.h"
#include "services/model_metrics.h"
#include "services/service_thread.h"
#include "triton/api.h"
#include "triton/error.h"

using pytriton::AllModelMetrics;
using pytriton::Check;
using pytriton::Guarded;
using pytriton::Instance;
using pytriton::Json;
using pytriton::MaintenanceThread;
using pytriton::PythonBackend;
using pytriton::PythonModel;
using pytriton::ServiceThread;
using pytriton::WorkerPool;
using pytriton::WorkerSupervisor;

namespace {

constexpr char kBoundModels[] = "pytriton";
constexpr char kRepositoryModels[] = "python";

struct Backend {
  AllModelMetrics metrics;
  MaintenanceThread maintenance{[this] { metrics.Publish(); }};
  ServiceThread services{[this](const auto& arena) { maintenance.Watch(arena); }};
  std::unique_ptr<PythonBackend> python;  // null in the backend of bound models
};

Backend* BackendOf(TRITONBACKEND_Model* model) {
  TRITONBACKEND_Backend* backend = nullptr;
  void* state = nullptr;
  Check(TRITONBACKEND_ModelBackend(model, &backend));
  Check(TRITONBACKEND_BackendState(backend, &state));
  return static_cast<Backend*>(state);
}

struct Model {
  std::unique_ptr<PythonModel> python;  // null for a bound model
  WorkerPool workers;
  std::atomic<int> instance_count{0};
};

Model* StateOf(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  Check(TRITONBACKEND_ModelState(model, &state));
  return static_cast<Model*>(state);
}

// The folder of this library.
std::string LibraryFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&LibraryFolder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

// The library is installed under the names of two backends. It also serves Python-based backends: folders with a
// model.py instead of a library.
std::unique_ptr<PythonBackend> NewPythonBackend(TRITONBACKEND_Backend* backend, ServiceThread* services) {
  const char* name = nullptr;
  Check(TRITONBACKEND_BackendName(backend, &name));
  if (std::string(name) == kBoundModels) return nullptr;
  TRITONSERVER_Message* message = nullptr;
  Check(TRITONBACKEND_BackendConfig(backend, &message));
  const char* json = nullptr;
  size_t size = 0;
  Check(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  TRITONBACKEND_ArtifactType type;
  const char* folder = nullptr;
  Check(TRITONBACKEND_BackendArtifacts(backend, &type, &folder));
  const bool has_code = std::string(name) != kRepositoryModels;
  return std::make_unique<PythonBackend>(Json::Parse({json, size})["cmdline"], LibraryFolder(), has_code ? folder : "",
                                         services);
}

Instance* StateOf(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  Check(TRITONBACKEND_ModelInstanceState(instance, &state));
  return static_cast<Instance*>(state);
}

}  // namespace

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return Guarded([&] {
    uint32_t major = 0;
    uint32_t minor = 0;
    Check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != kTritonBackendApiMajor) {
      throw pytriton::TritonError(TRITONSERVER_ERROR_UNSUPPORTED,
                                  "this server speaks version " + std::to_string(major) + "." + std::to_string(minor) +
                                      " of Triton's backend API, the pytriton backend version " +
                                      std::to_string(kTritonBackendApiMajor) +
                                      ".x: use a Triton 2.x server, or a pytriton made for this one");
    }
    pytriton::RetainFreedMemory();
    auto state = std::make_unique<Backend>();
    state->python = NewPythonBackend(backend, &state->services);
    Check(TRITONBACKEND_BackendSetState(backend, state.get()));
    static_cast<void>(state.release());  // TRITONBACKEND_Finalize deletes it
  });
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return Guarded([&] {
    void* state = nullptr;
    Check(TRITONBACKEND_BackendState(backend, &state));
    std::unique_ptr<Backend>(static_cast<Backend*>(state)).reset();
  });
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*,
                                                      TRITONBACKEND_BackendAttribute* attributes) {
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return Guarded([&] {
    PythonBackend* python = BackendOf(model)->python.get();
    auto state = std::make_unique<Model>();
    if (python != nullptr) state->python = std::make_unique<PythonModel>(model, python);
    Check(TRITONBACKEND_ModelSetState(model, state.get()));
    static_cast<void>(state.release());  // TRITONBACKEND_ModelFinalize deletes it
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return Guarded([&] { std::unique_ptr<Model>(StateOf(model)).reset(); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    Check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    Backend* backend = BackendOf(model);
    Model* shared = StateOf(model);
    std::unique_ptr<WorkerSupervisor> supervisor = shared->python != nullptr ? shared->python->Load(instance) : nullptr;
    const auto watch = [backend](const auto& arena, const auto& client_process) {
      backend->maintenance.Watch(arena, client_process);
    };
    auto state = std::make_unique<Instance>(instance, watch, &backend->services, &backend->metrics, &shared->workers,
                                            &shared->instance_count, std::move(supervisor));
    Check(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
    static_cast<void>(state.release());  // TRITONBACKEND_ModelInstanceFinalize deletes it
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] { std::unique_ptr<Instance>(StateOf(instance)).reset(); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, uint32_t request_count) {
  return Guarded([&] { StateOf(instance)->Execute(requests, request_count); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] { StateOf(instance)->CheckReady(); });
}
