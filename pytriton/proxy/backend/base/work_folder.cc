#include "base/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "base/system_error.h"

namespace pytriton {

namespace {

namespace fs = std::filesystem;

const std::string kPrefix = "pytriton-python-";

std::string Temporary() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

// Locks a folder of this user, unless it is locked; the lock ends with its process.
FileDescriptor Lock(const std::string& path) {
  FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!folder.valid() || fstat(folder.get(), &status) != 0 || status.st_uid != geteuid() ||
      flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    return FileDescriptor();
  }
  return folder;
}

// Creates a folder with a short name, since paths of sockets are limited.
std::string NewFolder(const std::string& parent) {
  for (int number = 0;; ++number) {
    const std::string path = parent + "/" + std::to_string(number);
    if (mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) throw std::runtime_error(SystemError("cannot create " + path));
  }
}

void Sweep(const std::string& parent) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const std::string path = entry.path();
    if (entry.path().filename().string().rfind(kPrefix, 0) != 0) continue;
    const FileDescriptor lock = Lock(path);
    if (lock.valid()) RemoveFolder(path);
  }
}

}  // namespace

void RemoveFolder(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

WorkFolder::WorkFolder() {
  const char* given = std::getenv("PYTRITON_BACKEND_FOLDER");
  if (given != nullptr) {
    path_ = NewFolder(given);
    return;
  }
  const std::string parent = Temporary();
  Sweep(parent);
  // Another process's clean-up may have removed it before it was locked.
  while (!lock_.valid()) {
    path_ = parent + "/" + kPrefix + "XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error(SystemError("cannot create a folder in " + parent));
    }
    lock_ = Lock(path_);
    if (lock_.valid() && access(path_.c_str(), F_OK) != 0) lock_.Reset();
  }
}

WorkFolder::~WorkFolder() { RemoveFolder(path_); }

std::string WorkFolder::Make(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  if (mkdir(path.c_str(), 0700) != 0) throw std::runtime_error(SystemError("cannot create " + path));
  return path;
}

}  // namespace pytriton
