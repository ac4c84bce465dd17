// The backend "python": models of a repository that are Python files, each instance in its own process; and
// Python-based backends, whose own Python file serves all their models.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/json.h"
#include "base/work_folder.h"
#include "python_models/execution_environment.h"
#include "python_models/worker_supervisor.h"
#include "services/service_thread.h"
#include "triton/api.h"

namespace pytriton {

// Resources that all its models share.
class PythonBackend {
 public:
  // `settings`: the options `--backend-config=<name>,<key>=<value>`; `folder`: where this library is installed; `code`:
  // the folder of a Python-based backend, or empty. Throws TritonError.
  PythonBackend(const Json& settings, const std::string& folder, std::string code, ServiceThread* services);

  // Specifies a worker process in the model's interpreter. `environment`: its EXECUTION_ENV_PATH, or empty.
  ProcessSpec WorkerCommand(const ExecutionEnvironment* environment) const;

  const std::string& code() const { return code_; }
  ServiceThread* services() const { return services_; }
  ExecutionEnvironments* environments() { return &environments_; }
  ChildProcess::Timeout start_timeout() const { return start_timeout_; }
  // Creates a folder for the sockets of a worker process.
  std::string NewFolder() { return work_.Make(std::to_string(++folders_)); }

 private:
  const std::string launcher_;
  const std::string bootstrap_;  // the path of bootstrap.py
  const std::string code_;
  const std::string interpreter_;  // of models without an environment
  ChildProcess::Timeout start_timeout_;
  ServiceThread* const services_;
  const WorkFolder work_;
  ExecutionEnvironments environments_;
  std::atomic<int> folders_{0};
};

// A version of a model.
class PythonModel {
 public:
  // Completes the model's configuration if Triton requests it. Throws TritonError.
  PythonModel(TRITONBACKEND_Model* model, PythonBackend* backend);

  // Starts the process of an instance, and loads the model in it. Throws TritonError.
  std::unique_ptr<WorkerSupervisor> Load(TRITONBACKEND_ModelInstance* instance);

 private:
  std::unique_ptr<WorkerSupervisor> NewSupervisor() const;
  void Complete();

  TRITONBACKEND_Model* const model_;
  PythonBackend* const backend_;
  TRITONSERVER_Server* server_ = nullptr;
  CommandMessage command_;  // the common fields of all commands to the model's processes
  std::shared_ptr<const ExecutionEnvironment> environment_;
  std::mutex mutex_;
  std::unique_ptr<WorkerSupervisor>
      first_;  // the process that has completed the configuration, until an instance takes it over
};

}  // namespace pytriton
