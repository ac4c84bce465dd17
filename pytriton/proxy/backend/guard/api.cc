// Checks calls of the server's front ends to Triton's core before the front ends use the values that a client has sent.
//
// The front ends of Triton 2.51 trust shapes and counts of a request, and crash or take all memory for some. They call
// the core through its C API, so a library that is loaded before the core's can check each call first. Calls of
// backends are passed on unchanged.
#include "triton/api.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/workarounds.h"
#include "guard/arrivals.h"
#include "guard/gate.h"
#include "guard/interpose.h"
#include "guard/limits.h"
#include "guard/metrics.h"
#include "guard/model_config.h"
#include "guard/settling.h"
#include "guard/stream_requests.h"
#include "triton/reserved_parameters.h"

namespace pytriton::guard {

namespace {

constexpr uint64_t kMaxRank = 256;
constexpr uint32_t kMaxTensors = 4096;  // inputs or outputs of a request

// The numbers of inputs and outputs so far of the request that this thread is reading. A front end creates and reads a
// request in one thread.
struct Counts {
  uint32_t inputs = 0;
  uint32_t outputs = 0;
};
thread_local Counts counts;

// Whether the server loads models as it starts. Set before the server is created, in the same thread.
bool has_startup_models = false;

// While the server stops, the controller unloads all models at once: one by one, each takes longer the more there are.
constexpr char kAllModels[] = "*";

TRITONSERVER_Error* Invalid(const std::string& message) {
  return PYTRITON_NEXT(TRITONSERVER_ErrorNew)(TRITONSERVER_ERROR_INVALID_ARG, message.c_str());
}

TRITONSERVER_Error* TooMany(const char* what) {
  return Invalid("the request has more than " + std::to_string(kMaxTensors) + " " + what);
}

// The size of a tensor in bytes, or of the lengths of a BYTES tensor's elements; negative if it overflows. An empty
// tensor's other dimensions count, too: NumPy refuses those that overflow.
int64_t ByteSize(TRITONSERVER_DataType datatype, const int64_t* shape, uint64_t rank) {
  const uint32_t item = PYTRITON_NEXT(TRITONSERVER_DataTypeByteSize)(datatype);
  int64_t size = item == 0 ? 4 : item;
  bool is_empty = false;
  for (uint64_t i = 0; i < rank; ++i) {
    if (shape[i] == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(size, shape[i], &size)) {
      return -1;
    }
  }
  return is_empty ? 0 : size;
}

std::string ShapeText(const int64_t* shape, uint64_t rank) {
  std::string text = "[";
  for (uint64_t i = 0; i < rank; ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text + "]";
}

// The error for a request that arrives while the server is stopping; null at other times.
TRITONSERVER_Error* Stopping() {
  if (CurrentGate() != Gate::kStopping) return nullptr;
  return PYTRITON_NEXT(TRITONSERVER_ErrorNew)(TRITONSERVER_ERROR_UNAVAILABLE, "the server is shutting down");
}

// Exits the process without the destructors of static objects. That of Triton's metrics would wait for a thread that
// sleeps for up to a second. All output of the server has been written by now.
void EndAtOnce(int status, void* /*unused*/) {
  std::fflush(nullptr);
  _exit(status);
}

// Replaces a model's configuration with the one for clients.
TRITONSERVER_Error* ShowBatcher(TRITONSERVER_Message** config) {
  const char* json = nullptr;
  size_t size = 0;
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_MessageSerializeToJson)(*config, &json, &size);
  const std::optional<std::string> shown = error == nullptr ? WithBatcher({json, size}) : std::nullopt;
  if (error == nullptr && !shown.has_value()) return nullptr;
  PYTRITON_NEXT(TRITONSERVER_MessageDelete)(std::exchange(*config, nullptr));
  if (error != nullptr) return error;
  return PYTRITON_NEXT(TRITONSERVER_MessageNewFromSerializedJson)(config, shown->data(), shown->size());
}

// Starts to unload all models, unless there are requests in flight: those keep their models.
TRITONSERVER_Error* UnloadAll(TRITONSERVER_Server* server) {
  WaitUntilSettled(nullptr);
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_ServerStop)(server);
  // The error only means that the exit timeout has passed: it does not wait for the models.
  if (error != nullptr) PYTRITON_NEXT(TRITONSERVER_ErrorDelete)(error);
  return nullptr;
}

}  // namespace

}  // namespace pytriton::guard

using namespace pytriton::guard;  // NOLINT: this file is a program's

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ServerNew(TRITONSERVER_Server** server, TRITONSERVER_ServerOptions* options) {
  WatchMemory();
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_ServerNew)(server, options);
  if (error == nullptr) {
    PublishMetrics();
    on_exit(EndAtOnce, nullptr);
  }
  if (has_startup_models) NoteLoaded(nullptr);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStartupModel(TRITONSERVER_ServerOptions* options,
                                                              const char* model_name) {
  has_startup_models = true;
  return PYTRITON_NEXT(TRITONSERVER_ServerOptionsSetStartupModel)(options, model_name);
}

// Only the controller waits for requests. The core, which checks only once a second whether they have ended, need not.
TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetExitTimeout(TRITONSERVER_ServerOptions* options,
                                                             unsigned int /*timeout*/) {
  return PYTRITON_NEXT(TRITONSERVER_ServerOptionsSetExitTimeout)(options, 0);
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModel(TRITONSERVER_Server* server, const char* model_name) {
  WaitUntilSettled(model_name);
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_ServerLoadModel)(server, model_name);
  NoteLoaded(model_name);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModelWithParameters(TRITONSERVER_Server* server, const char* model_name,
                                                               const TRITONSERVER_Parameter** parameters,
                                                               const uint64_t parameter_count) {
  WaitUntilSettled(model_name);
  TRITONSERVER_Error* error =
      PYTRITON_NEXT(TRITONSERVER_ServerLoadModelWithParameters)(server, model_name, parameters, parameter_count);
  NoteLoaded(model_name);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server* server, const char* model_name) {
  if (CurrentGate() == Gate::kStopping && std::strcmp(model_name, kAllModels) == 0) return UnloadAll(server);
  WaitUntilSettled(model_name);
  return PYTRITON_NEXT(TRITONSERVER_ServerUnloadModel)(server, model_name);
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server* server, const char* model_name) {
  WaitUntilSettled(model_name);
  return PYTRITON_NEXT(TRITONSERVER_ServerUnloadModelAndDependents)(server, model_name);
}

TRITONSERVER_Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server* server, bool* ready) {
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_ServerIsReady)(server, ready);
  if (error == nullptr && (CurrentGate() != Gate::kServing || IsUnready())) *ready = false;
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server* server, const char* model_name,
                                                    const int64_t model_version, bool* ready) {
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_ServerModelIsReady)(server, model_name, model_version, ready);
  if (error == nullptr && PYTRITON_CALLED_BY_PROGRAM() && IsUnready(model_name)) *ready = false;
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerModelConfig(TRITONSERVER_Server* server, const char* model_name,
                                                   const int64_t model_version, const uint32_t config_version,
                                                   TRITONSERVER_Message** model_config) {
  TRITONSERVER_Error* error =
      PYTRITON_NEXT(TRITONSERVER_ServerModelConfig)(server, model_name, model_version, config_version, model_config);
  return error == nullptr && PYTRITON_CALLED_BY_PROGRAM() ? ShowBatcher(model_config) : error;
}

TRITONSERVER_Error* TRITONSERVER_ServerMetrics(TRITONSERVER_Server* server, TRITONSERVER_Metrics** metrics) {
  UpdateHangs();
  return PYTRITON_NEXT(TRITONSERVER_ServerMetrics)(server, metrics);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server* server, const char* model_name,
                                                                  const int64_t model_version, uint32_t* txn_flags,
                                                                  void** voidp) {
  if (PYTRITON_CALLED_BY_PROGRAM()) {
    if (TRITONSERVER_Error* error = Stopping()) return error;
  }
  TRITONSERVER_Error* error =
      PYTRITON_NEXT(TRITONSERVER_ServerModelTransactionProperties)(server, model_name, model_version, txn_flags, voidp);
  if (error == nullptr) NoteTransactionProperties(*txn_flags);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestNew(TRITONSERVER_InferenceRequest** request,
                                                     TRITONSERVER_Server* server, const char* model_name,
                                                     const int64_t model_version) {
  if (PYTRITON_CALLED_BY_PROGRAM()) {
    if (TRITONSERVER_Error* error = Stopping()) return error;
    counts = {};
  }
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestNew)(request, server, model_name, model_version);
}

TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request,
                                                  TRITONSERVER_InferenceTrace* trace) {
  NoteArrival(request);
  return InferAsync(server, request, trace);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest* request) {
  ForgetArrival(request);
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestDelete)(request);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(TRITONSERVER_InferenceRequest* request, const char* name,
                                                          const TRITONSERVER_DataType datatype, const int64_t* shape,
                                                          uint64_t dim_count) {
  if (PYTRITON_CALLED_BY_PROGRAM()) {
    if (++counts.inputs > kMaxTensors) return TooMany("inputs");
    if (dim_count > kMaxRank) {
      return Invalid("input '" + std::string(name) + "' has " + std::to_string(dim_count) + " dimensions; at most " +
                     std::to_string(kMaxRank) + " are possible");
    }
    if (std::any_of(shape, shape + dim_count, [](int64_t dim) { return dim < 0; })) {
      return Invalid("input '" + std::string(name) + "' has shape " + ShapeText(shape, dim_count) +
                     ", which has a negative dimension");
    }
    const int64_t size = ByteSize(datatype, shape, dim_count);
    if (size < 0 || size > MaxInputBytes()) {
      return Invalid("input '" + std::string(name) + "' has shape " + ShapeText(shape, dim_count) +
                     ", which takes more than " + std::to_string(MaxInputBytes()) + " bytes");
    }
  }
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestAddInput)(request, name, datatype, shape, dim_count);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest* request,
                                                                    const char* name) {
  if (PYTRITON_CALLED_BY_PROGRAM() && ++counts.outputs > kMaxTensors) return TooMany("outputs");
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestAddRequestedOutput)(request, name);
}

// Only the backend may set a request's call chain: a client that did so could make others' requests fail.
TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetStringParameter(TRITONSERVER_InferenceRequest* request,
                                                                    const char* key, const char* value) {
  if (PYTRITON_CALLED_BY_PROGRAM() && std::strcmp(key, pytriton::kCallersParameter) == 0) {
    return Invalid("the parameter '" + std::string(key) + "' is reserved for the server; omit it");
  }
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestSetStringParameter)(request, key, value);
}

// Workaround for Triton (classified-bytes): for the classification extension, the front ends divide by the size of the
// output's items, which is 0 for BYTES. With any other size, they find that BYTES cannot be classified.
uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype) {
  static const bool is_needed = pytriton::NeedsWorkaround("classified-bytes");
  if (is_needed && datatype == TRITONSERVER_TYPE_BYTES && PYTRITON_CALLED_BY_PROGRAM()) return 1;
  return PYTRITON_NEXT(TRITONSERVER_DataTypeByteSize)(datatype);
}
}
