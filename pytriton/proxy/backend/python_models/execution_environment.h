// The Python environments that models bring along: EXECUTION_ENV_PATH.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/work_folder.h"

namespace pytriton {

// A folder with an environment in it, for as long as somebody holds it.
class ExecutionEnvironment {
 public:
  // An environment that lies there unpacked.
  explicit ExecutionEnvironment(std::string folder) : folder_(std::move(folder)) {}
  // Unpacks an archive into an empty folder, and removes it again in the end. Throws std::runtime_error.
  ExecutionEnvironment(const std::string& archive, std::string folder, const std::string& launcher);
  ~ExecutionEnvironment();
  ExecutionEnvironment(const ExecutionEnvironment&) = delete;
  ExecutionEnvironment& operator=(const ExecutionEnvironment&) = delete;

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

  // The environment in a folder or in an archive (tar, compressed in any way that the program `tar` knows). All models
  // share what is unpacked from the same archive. Throws std::runtime_error.
  std::shared_ptr<const ExecutionEnvironment> Get(const std::string& path);

 private:
  const WorkFolder* const work_;
  const std::string launcher_;
  std::mutex mutex_;  // held while an archive is unpacked: others may want the same
  int unpacked_ = 0;
  // By path, with what tells one archive from the next under that path.
  std::map<std::string, std::pair<std::string, std::shared_ptr<const ExecutionEnvironment>>> archives_;
};

// Where a program is: `name` itself where it is a path, else in a folder of the environment variable PATH. Throws
// std::runtime_error when it is not there.
std::string FindProgram(const std::string& name);

// The environment variables of this process.
std::vector<std::string> Environment();

}  // namespace pytriton
