// A folder for sockets and unpacked environments, removed with its owner.
#pragma once

#include <string>

#include "base/file_descriptor.h"

namespace pytriton {

class WorkFolder {
 public:
  // Creates a folder in the one named by the environment variable PYTRITON_BACKEND_FOLDER, or else in the system's
  // temporary folder, and then removes what killed servers have left there. Throws std::runtime_error.
  WorkFolder();
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  // Creates a folder in it with mode 0700.
  std::string Make(const std::string& name) const;

 private:
  std::string path_;
  FileDescriptor lock_;  // held for as long as the server lives
};

// Removes a folder and its contents, as far as possible.
void RemoveFolder(const std::string& path);

}  // namespace pytriton
