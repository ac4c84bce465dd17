#include "model_instance/client_process_watch.h"

#include <poll.h>

#include "triton/error.h"

namespace pytriton {

namespace {

constexpr int kPatience = 4;  // checks, of which the maintenance thread makes two per second

}  // namespace

void ClientProcessWatch::UnloadIfGone() {
  if (!process_.valid()) return;
  pollfd process = {process_.get(), POLLIN, 0};
  if (gone_for_ == 0 && poll(&process, 1, 0) <= 0) return;
  if (++gone_for_ != kPatience) return;
  Log(TRITONSERVER_LOG_WARN, "model '" + model_ + "': the process that served it has ended; the model is unloaded");
  LogIfError(TRITONSERVER_ServerUnloadModel(server_, model_.c_str()), "cannot unload a model");
}

}  // namespace pytriton
