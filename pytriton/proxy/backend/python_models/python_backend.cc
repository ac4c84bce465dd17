#include "python_models/python_backend.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "services/restart_counter.h"
#include "triton/error.h"
#include "triton/model_config.h"

namespace pytriton {

namespace {

constexpr char kEnvironmentParameter[] = "EXECUTION_ENV_PATH";
constexpr char kModelFolder[] = "$$TRITON_MODEL_DIRECTORY";
constexpr char kLibraryPath[] = "LD_LIBRARY_PATH=";
constexpr char kOwnLibraryPath[] = "PYTRITON_LIBRARY_PATH";

std::string Variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::string ChooseInterpreter(const Json& settings) {
  const std::string& setting = settings["python-runtime"].text();
  return setting.empty() ? Variable("PYTRITON_PYTHON", "python3") : setting;
}

ChildProcess::Timeout StartTimeout(const Json& settings) {
  const std::string& setting = settings["stub-timeout-seconds"].text();
  if (setting.empty()) return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(setting.c_str(), &end);
  if (*end != '\0' || !(seconds > 0)) {
    throw TritonError(TRITONSERVER_ERROR_INVALID_ARG, "--backend-config=python,stub-timeout-seconds=" + setting +
                                                          " is not a number of seconds above 0");
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void LogIgnoredSettings(const Json& settings) {
  std::string ignored;
  for (const char* name : {"shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name"}) {
    if (!settings[name].text().empty()) ignored += (ignored.empty() ? "" : ", ") + std::string(name);
  }
  if (ignored.empty()) return;
  Log(TRITONSERVER_LOG_INFO,
      "--backend-config=python: " + ignored + " has no effect: shared memory is anonymous here, and grows as needed");
}

std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

const char* KindName(TRITONSERVER_InstanceGroupKind kind) {
  switch (kind) {
    case TRITONSERVER_INSTANCEGROUPKIND_CPU:
      return "CPU";
    case TRITONSERVER_INSTANCEGROUPKIND_GPU:
      return "GPU";
    case TRITONSERVER_INSTANCEGROUPKIND_MODEL:
      return "MODEL";
    default:
      return "AUTO";
  }
}

// Calls `body`, and adds the model's name to its errors.
template <typename Body>
auto Named(const std::string& model, Body body) {
  try {
    return body();
  } catch (const CommandError& error) {
    if (!error.detail().empty()) Log(TRITONSERVER_LOG_ERROR, error.detail());
    throw TritonError(TRITONSERVER_ERROR_INTERNAL, "model '" + model + "': " + error.what());
  } catch (const TritonError&) {
    throw;
  } catch (const std::exception& error) {
    throw TritonError(TRITONSERVER_ERROR_INTERNAL, "model '" + model + "': " + error.what());
  }
}

}  // namespace

PythonBackend::PythonBackend(const Json& settings, const std::string& folder, std::string code, ServiceThread* services)
    : launcher_(folder + "/pytriton-launch"),
      bootstrap_(Variable("PYTRITON_HOST", folder + "/pytriton/python_backend/bootstrap.py")),
      code_(std::move(code)),
      interpreter_(ChooseInterpreter(settings)),
      start_timeout_(StartTimeout(settings)),
      services_(services),
      environments_(&work_, launcher_) {
  LogIgnoredSettings(settings);
}

ProcessSpec PythonBackend::WorkerCommand(const ExecutionEnvironment* environment) const {
  ProcessSpec spec;
  const std::string python = FindProgram(environment != nullptr ? environment->interpreter() : interpreter_);
  spec.words = {python, bootstrap_};
  if (environment != nullptr) spec.words = environment->Activated(std::move(spec.words));
  spec.words.insert(spec.words.begin(), launcher_);
  // The model must not use the libraries that the server was started with.
  const char* library_path = std::getenv(kOwnLibraryPath);
  for (std::string& each : Environment()) {
    if (library_path != nullptr && each.rfind(kLibraryPath, 0) == 0) {
      if (*library_path != '\0') spec.environment.push_back(kLibraryPath + std::string(library_path));
    } else if (environment != nullptr && each.rfind("PATH=", 0) == 0) {
      spec.environment.push_back("PATH=" + environment->programs() + ":" + each.substr(5));
    } else {
      spec.environment.push_back(std::move(each));
    }
  }
  return spec;
}

PythonModel::PythonModel(TRITONBACKEND_Model* model, PythonBackend* backend) : model_(model), backend_(backend) {
  const char* text = nullptr;
  Check(TRITONBACKEND_ModelName(model, &text));
  command_.model = text;
  Check(TRITONBACKEND_ModelServer(model, &server_));
  uint64_t version = 0;
  Check(TRITONBACKEND_ModelVersion(model, &version));
  command_.version = static_cast<int64_t>(version);
  TRITONBACKEND_ArtifactType type;
  Check(TRITONBACKEND_ModelRepository(model, &type, &text));
  command_.repository = text;
  command_.backend = backend->code();
  Named(command_.model, [this] {
    const ModelConfig config = ModelConfig::Of(model_);
    command_.config = config.json();
    const std::string& path = config.StringParameter(kEnvironmentParameter);
    if (!path.empty()) environment_ = backend_->environments()->Get(Replaced(path, kModelFolder, command_.repository));
  });
  bool wanted = false;
  Check(TRITONBACKEND_ModelAutoCompleteConfig(model, &wanted));
  if (wanted) Named(command_.model, [this] { Complete(); });
}

void PythonModel::Complete() {
  first_ = NewSupervisor();
  CommandMessage command = command_;
  command.command = Command::kCompleteConfig;
  const std::string config = first_->Complete(command);
  TRITONSERVER_Message* message = nullptr;
  Check(TRITONSERVER_MessageNewFromSerializedJson(&message, config.data(), config.size()));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model_, 1, message);
  LogIfError(TRITONSERVER_MessageDelete(message), "cannot delete a model configuration");
  Check(error);
  command_.config = ModelConfig::Of(model_).json();  // Triton has completed it
}

std::unique_ptr<WorkerSupervisor> PythonModel::Load(TRITONBACKEND_ModelInstance* instance) {
  std::unique_ptr<WorkerSupervisor> supervisor;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    supervisor = std::move(first_);
  }
  return Named(command_.model, [&] {
    if (supervisor == nullptr) supervisor = NewSupervisor();
    CommandMessage command = command_;
    command.command = Command::kLoad;
    command.folder = backend_->NewFolder();
    const char* name = nullptr;
    Check(TRITONBACKEND_ModelInstanceName(instance, &name));
    command.instance = name;
    TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_AUTO;
    Check(TRITONBACKEND_ModelInstanceKind(instance, &kind));
    command.instance_kind = KindName(kind);
    int32_t device = 0;
    Check(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    command.device_id = std::to_string(device);
    const auto restart_counter = std::make_shared<RestartCounter>(command.model, command.version, command.instance);
    supervisor->Load(command, [restart_counter] { restart_counter->Add(1); });
    return std::move(supervisor);
  });
}

std::unique_ptr<WorkerSupervisor> PythonModel::NewSupervisor() const {
  const auto open_service = [services = backend_->services(), server = server_, model = command_.model,
                             version = command_.version](FileDescriptor* worker_end) {
    return services->Open(server, model, version, worker_end);
  };
  return std::make_unique<WorkerSupervisor>(backend_->WorkerCommand(environment_.get()), command_.model,
                                            backend_->start_timeout(), open_service);
}

}  // namespace pytriton
