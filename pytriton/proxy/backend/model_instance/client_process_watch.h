// Unloads a model after its client process has exited.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/arena.h"
#include "triton/api.h"

namespace pytriton {

class ClientProcessWatch {
 public:
  // `process` becomes readable when the process ends.
  ClientProcessWatch(FileDescriptor process, TRITONSERVER_Server* server, std::string model)
      : process_(std::move(process)), server_(server), model_(std::move(model)) {}

  // Unloads each model once its process has been gone for a while without having unloaded the model. A restarted
  // process reloads it, which replaces the instance and its watch.
  static void UnloadThoseGone(const std::vector<std::shared_ptr<ClientProcessWatch>>& watches);

 private:
  void NoteGone();

  FileDescriptor process_;
  TRITONSERVER_Server* const server_;
  const std::string model_;
  int gone_for_ = 0;  // number of checks that found the process gone
};

}  // namespace pytriton
