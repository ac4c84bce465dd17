#include "services/model_control.h"

#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "triton/error.h"

namespace pytriton {

namespace {

void Load(TRITONSERVER_Server* server, const ModelMessage& message, const char* data) {
  std::vector<const TRITONSERVER_Parameter*> parameters;
  if (!message.config.empty()) {
    parameters.push_back(TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, message.config.c_str()));
  }
  for (const ModelMessage::File& file : message.files) {
    parameters.push_back(TRITONSERVER_ParameterBytesNew(("file:" + file.path).c_str(), data + file.offset, file.size));
  }
  TRITONSERVER_Error* error =
      TRITONSERVER_ServerLoadModelWithParameters(server, message.model.c_str(), parameters.data(), parameters.size());
  for (const TRITONSERVER_Parameter* each : parameters) {
    TRITONSERVER_ParameterDelete(const_cast<TRITONSERVER_Parameter*>(each));
  }
  Check(error);
}

bool IsReady(TRITONSERVER_Server* server, const ModelMessage& message) {
  bool ready = false;
  try {
    Check(TRITONSERVER_ServerModelIsReady(server, message.model.c_str(), message.version, &ready));
  } catch (const TritonError& error) {
    if (error.code() != TRITONSERVER_ERROR_NOT_FOUND) throw;
    return false;  // current servers respond so if there is no such model
  }
  return ready;
}

}  // namespace

ModelControl::~ModelControl() {
  for (Task& task : tasks_) task.thread.join();
}

bool ModelControl::Start(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tasks_.remove_if([](Task& task) {
    if (!task.done) return false;
    task.thread.join();
    return true;
  });
  Task& task = tasks_.emplace_back();
  try {
    task.thread = std::thread([&task, work = std::move(work)] {
      work();
      task.done = true;
    });
  } catch (const std::system_error&) {  // too many threads
    tasks_.pop_back();
    return false;
  }
  return true;
}

bool ModelControl::Do(TRITONSERVER_Server* server, const ModelMessage& message, const char* data) {
  bool ready = false;
  switch (message.command) {
    case ModelOperation::kLoad:
      Load(server, message, data);
      break;
    case ModelOperation::kUnload:
      Check(TRITONSERVER_ServerUnloadModel(server, message.model.c_str()));
      break;
    case ModelOperation::kUnloadWithDependents:
      Check(TRITONSERVER_ServerUnloadModelAndDependents(server, message.model.c_str()));
      break;
    case ModelOperation::kIsReady:
      ready = IsReady(server, message);
      break;
    default:
      throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED, "a worker requested an unknown operation on a model");
  }
  return ready;
}

}  // namespace pytriton
