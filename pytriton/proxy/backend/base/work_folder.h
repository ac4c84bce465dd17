// A folder for sockets and unpacked environments that is gone when its owner is.
#pragma once

#include <string>

#include "transport/arena.h"

namespace pytriton {

class WorkFolder {
 public:
  // The empty folder that the environment variable PYTRITON_BACKEND_FOLDER names; else a new one among the system's
  // temporary files, where it removes what killed servers have left. Throws std::runtime_error.
  WorkFolder();
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  // A new folder in it, for its owner alone.
  std::string Make(const std::string& name) const;

 private:
  std::string path_;
  FileDescriptor lock_;  // held for as long as the server lives
};

// Removes a folder and all that is in it, as far as that is possible.
void RemoveFolder(const std::string& path);

}  // namespace pytriton
