// The process that a model's worker lives in, and the model, which is of no use without it.
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

  // Unloads the model once its process has been gone for a while without having done so. A process that is started
  // again loads it anew, which replaces the instance, and with it this owner.
  void UnloadIfGone();

 private:
  FileDescriptor process_;
  TRITONSERVER_Server* const server_;
  const std::string model_;
  int gone_for_ = 0;  // how often the process was found gone
};

}  // namespace pytriton
