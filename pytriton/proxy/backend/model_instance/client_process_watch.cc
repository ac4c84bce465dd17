#include "model_instance/client_process_watch.h"

#include <poll.h>

#include "triton/error.h"

namespace pytriton {

namespace {

constexpr int kChecksUntilUnload = 4;  // checks, of which the maintenance thread makes two per second

}  // namespace

void ClientProcessWatch::UnloadThoseGone(const std::vector<std::shared_ptr<ClientProcessWatch>>& watches) {
  std::vector<pollfd> processes;  // a negative descriptor is ignored
  processes.reserve(watches.size());
  for (const std::shared_ptr<ClientProcessWatch>& watch : watches)
    processes.push_back({watch->process_.get(), POLLIN, 0});
  if (poll(processes.data(), processes.size(), 0) <= 0) return;
  for (size_t i = 0; i < watches.size(); ++i) {
    if (processes[i].revents != 0) watches[i]->NoteGone();
  }
}

void ClientProcessWatch::NoteGone() {
  if (++gone_for_ != kChecksUntilUnload) return;
  Log(TRITONSERVER_LOG_WARN, "model '" + model_ + "': the process that served it has exited; the model is unloaded");
  LogIfError(TRITONSERVER_ServerUnloadModel(server_, model_.c_str()), "cannot unload a model");
}

}  // namespace pytriton
