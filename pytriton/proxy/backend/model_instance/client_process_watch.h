// Unloads a model after its client process has exited.
#pragma once

#include <string>
#include <utility>

#include "transport/arena.h"
#include "triton/api.h"

namespace pytriton {

class ClientProcessWatch {
 public:
  // `process` becomes readable when the process ends.
  ClientProcessWatch(FileDescriptor process, TRITONSERVER_Server* server, std::string model)
      : process_(std::move(process)), server_(server), model_(std::move(model)) {}

  // Unloads the model once its process has been gone for a while without having done so itself. A process that is
  // started again loads it anew, which replaces the instance, and with it this object.
  void UnloadIfGone();

 private:
  FileDescriptor process_;
  TRITONSERVER_Server* const server_;
  const std::string model_;
  int gone_for_ = 0;  // number of checks that found the process gone
};

}  // namespace pytriton
