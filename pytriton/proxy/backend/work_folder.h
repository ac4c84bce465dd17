// A folder for sockets and unpacked environments that is gone when its owner is.
#pragma once

#include <string>

#include "arena.h"

namespace pytriton {

class WorkFolder {
 public:
  // In the folder that the environment variable PYTRITON_BACKEND_FOLDER names, which somebody else removes; else among
  // the system's temporary files. Removes what killed servers have left there. Throws std::runtime_error.
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
