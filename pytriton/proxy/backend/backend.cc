// The functions by which Triton drives a backend.
#include <memory>
#include <string>

#include "housekeeper.h"
#include "instance.h"
#include "services.h"
#include "triton_api.h"
#include "triton_error.h"

using pytriton::Check;
using pytriton::Guarded;
using pytriton::Housekeeper;
using pytriton::Instance;
using pytriton::Services;

namespace {

// Of the backend.
struct State {
  Housekeeper housekeeper;
  Services services{[this](const auto& arena) { housekeeper.Watch(arena); }};
};

State* BackendStateOf(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = nullptr;
  TRITONBACKEND_Backend* backend = nullptr;
  void* state = nullptr;
  Check(TRITONBACKEND_ModelInstanceModel(instance, &model));
  Check(TRITONBACKEND_ModelBackend(model, &backend));
  Check(TRITONBACKEND_BackendState(backend, &state));
  return static_cast<State*>(state);
}

Instance* StateOf(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  Check(TRITONBACKEND_ModelInstanceState(instance, &state));
  return static_cast<Instance*>(state);
}

}  // namespace

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return Guarded([&] {
    uint32_t major = 0;
    uint32_t minor = 0;
    Check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != kTritonBackendApiMajor) {
      throw pytriton::TritonError(TRITONSERVER_ERROR_UNSUPPORTED,
                                  "this server speaks version " + std::to_string(major) + "." + std::to_string(minor) +
                                      " of Triton's backend API, the pytriton backend version " +
                                      std::to_string(kTritonBackendApiMajor) +
                                      ".x: use a Triton 2.x server, or a pytriton made for this one");
    }
    auto state = std::make_unique<State>();
    Check(TRITONBACKEND_BackendSetState(backend, state.get()));
    static_cast<void>(state.release());  // TRITONBACKEND_Finalize deletes it
  });
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return Guarded([&] {
    void* state = nullptr;
    Check(TRITONBACKEND_BackendState(backend, &state));
    std::unique_ptr<State>(static_cast<State*>(state)).reset();
  });
}

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*,
                                                      TRITONBACKEND_BackendAttribute* attributes) {
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] {
    State* backend = BackendStateOf(instance);
    auto state = std::make_unique<Instance>(
        instance, [backend](const auto& arena, const auto& owner) { backend->housekeeper.Watch(arena, owner); },
        &backend->services);
    Check(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
    static_cast<void>(state.release());  // TRITONBACKEND_ModelInstanceFinalize deletes it
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] { std::unique_ptr<Instance>(StateOf(instance)).reset(); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, uint32_t request_count) {
  return Guarded([&] { StateOf(instance)->Execute(requests, request_count); });
}
