// The Python environments of models: EXECUTION_ENV_PATH.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/work_folder.h"

namespace pytriton {

// A folder with an environment, which exists as long as it is referenced.
class ExecutionEnvironment {
 public:
  // Refers to an unpacked environment.
  explicit ExecutionEnvironment(std::string folder) : folder_(std::move(folder)) {}
  // Unpacks an archive into an empty folder, which is removed with this object. Throws std::runtime_error.
  ExecutionEnvironment(const std::string& archive, std::string folder, const std::string& launcher);
  ~ExecutionEnvironment();
  ExecutionEnvironment(const ExecutionEnvironment&) = delete;
  ExecutionEnvironment& operator=(const ExecutionEnvironment&) = delete;

  // Returns a command that runs another one in the activated environment, as `source bin/activate` does. The same
  // command if there is nothing to activate it by, or no bash.
  std::vector<std::string> Activated(std::vector<std::string> command) const;

  std::string programs() const { return folder_ + "/bin"; }
  std::string interpreter() const { return programs() + "/python"; }

 private:
  const std::string folder_;
  const bool temporary_ = false;
};

class ExecutionEnvironments {
 public:
  // `launcher` starts the programs that unpack.
  ExecutionEnvironments(const WorkFolder* work, std::string launcher) : work_(work), launcher_(std::move(launcher)) {}

  // Returns the environment in a folder or an archive (tar, compressed in any way that the program `tar` supports). All
  // models share the environment of an archive. Throws std::runtime_error.
  std::shared_ptr<const ExecutionEnvironment> Get(const std::string& path);

 private:
  const WorkFolder* const work_;
  const std::string launcher_;
  std::mutex mutex_;  // held while an archive is unpacked, since several models may use it
  int unpacked_ = 0;
  // By path and an identification of the archive at that path.
  std::map<std::string, std::pair<std::string, std::shared_ptr<const ExecutionEnvironment>>> archives_;
};

// Returns the path of a program: `name` itself if it is a path, otherwise looked up in PATH. Throws std::runtime_error
// if there is none.
std::string FindProgram(const std::string& name);

// The environment variables of this process.
std::vector<std::string> Environment();

}  // namespace pytriton
