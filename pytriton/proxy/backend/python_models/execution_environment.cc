#include "python_models/execution_environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "python_models/child_process.h"
#include "triton/error.h"

namespace pytriton {

namespace {

bool IsProgram(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

void Run(std::vector<std::string> words, const std::string& what) {
  const Process process({std::move(words), Environment()});
  process.Wait();
  const std::string end = process.DescribeExit();
  if (end != "ended with exit status 0") throw std::runtime_error(what + " " + end + "; the server's log has more");
}

}  // namespace

std::vector<std::string> Environment() {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  return variables;
}

std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (!IsProgram(name)) throw std::runtime_error(name + " is not a program");
    return name;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/" + name;
    if (IsProgram(program)) return program;
  }
  throw std::runtime_error("there is no program " + name + " in PATH");
}

ExecutionEnvironment::ExecutionEnvironment(const std::string& archive, std::string folder, const std::string& launcher)
    : folder_(std::move(folder)), temporary_(true) {
  try {
    Run({launcher, FindProgram("tar"), "--extract", "--no-same-owner", "--file", archive, "--directory", folder_},
        "unpacking " + archive + ": tar");
    const std::string unpack = programs() + "/conda-unpack";
    if (IsProgram(unpack)) Run({launcher, FindProgram(interpreter()), unpack}, unpack);
  } catch (const std::exception&) {
    RemoveFolder(folder_);
    throw;
  }
}

ExecutionEnvironment::~ExecutionEnvironment() {
  if (temporary_) RemoveFolder(folder_);
}

std::vector<std::string> ExecutionEnvironment::Activated(std::vector<std::string> command) const {
  const std::string activate = programs() + "/activate";
  if (access(activate.c_str(), R_OK) != 0) return command;
  std::string bash;
  try {
    bash = FindProgram("bash");
  } catch (const std::exception& error) {
    Log(TRITONSERVER_LOG_WARN, "the execution environment " + folder_ + " is not activated: " + error.what());
    return command;
  }
  // An environment that was moved may name its former folder.
  const std::string script =
      "source \"$0\"; export PATH=\"$1/bin:$PATH\" LD_LIBRARY_PATH=\"$1/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"; "
      "shift; exec \"$@\"";
  command.insert(command.begin(), {bash, "-c", script, activate, folder_});
  return command;
}

std::shared_ptr<const ExecutionEnvironment> ExecutionEnvironments::Get(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) throw std::runtime_error(path + " does not exist");
  if (S_ISDIR(status.st_mode)) return std::make_shared<ExecutionEnvironment>(path);
  std::ostringstream identity;
  identity << status.st_dev << ' ' << status.st_ino << ' ' << status.st_size << ' ' << status.st_mtim.tv_sec << ' '
           << status.st_mtim.tv_nsec;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& [known, environment] = archives_[path];
  if (known != identity.str()) {
    environment = std::make_shared<ExecutionEnvironment>(
        path, work_->Make("environment-" + std::to_string(++unpacked_)), launcher_);
    known = identity.str();
    Log(TRITONSERVER_LOG_INFO, "unpacked the execution environment " + path);
  }
  return environment;
}

}  // namespace pytriton
