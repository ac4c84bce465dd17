#include "fake_server.h"

#include <cstring>
#include <mutex>

#include "fake_metrics.h"
#include "fake_triton.h"

struct TRITONSERVER_ResponseAllocator {
  TRITONSERVER_ResponseAllocatorAllocFn_t allocate;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
};

struct TRITONSERVER_InferenceResponse {
  struct Buffer {
    fake_server::Output output;
    void* data = nullptr;
    void* userp = nullptr;
  };

  std::string model;
  std::string id;
  TRITONSERVER_Error* error = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  std::vector<Buffer> outputs;
};

namespace {

// A trace that a front end or a backend has made. `parent` is that of an ensemble's step.
struct Trace {
  uint64_t parent;
  TRITONSERVER_InferenceTraceActivityFn_t on_activity;
  TRITONSERVER_InferenceTraceReleaseFn_t on_release;
  void* userp;
};

// Goes through the life of a trace, and of a step's that outlives it, as an ensemble's may.
void Walk(TRITONSERVER_InferenceTrace* trace) {
  if (trace == nullptr) return;
  const Trace root = *reinterpret_cast<Trace*>(trace);
  auto* step =
      reinterpret_cast<TRITONSERVER_InferenceTrace*>(new Trace{1, root.on_activity, root.on_release, root.userp});
  for (int each = TRITONSERVER_TRACE_REQUEST_START; each <= TRITONSERVER_TRACE_REQUEST_END; ++each) {
    const auto activity = static_cast<TRITONSERVER_InferenceTraceActivity>(each);
    root.on_activity(step, activity, 1, root.userp);
    root.on_activity(trace, activity, 100 + each, root.userp);
  }
  root.on_release(trace, root.userp);
  root.on_activity(step, TRITONSERVER_TRACE_REQUEST_END, 1, root.userp);
  root.on_release(step, root.userp);
}

std::mutex mutex;
std::map<std::string, fake_server::Serve> models;
std::atomic<int64_t> requests{0};
// Traces that nobody releases; not even when the program ends.
auto& kept_traces = *new std::vector<TRITONSERVER_InferenceTrace*>;

TRITONSERVER_Error* ErrorOf(TRITONSERVER_Error_Code code, const std::string& message) {
  return TRITONSERVER_ErrorNew(code, message.c_str());
}

}  // namespace

bool TRITONSERVER_InferenceRequest::IsUntouched() const {
  for (const auto& [name, input] : inputs) {
    if (std::memcmp(input.base, input.data.data(), input.data.size()) != 0) return false;
  }
  return true;
}

namespace fake_server {

void AddModel(const std::string& name, Serve serve) {
  const std::lock_guard<std::mutex> lock(mutex);
  models[name] = std::move(serve);
}

void Respond(TRITONSERVER_InferenceRequest* request, const std::vector<Output>& outputs, bool final) {
  auto* response = new TRITONSERVER_InferenceResponse;
  response->model = request->model;
  response->id = request->id;
  response->allocator = request->allocator;
  for (const Output& output : outputs) {
    TRITONSERVER_InferenceResponse::Buffer buffer;
    buffer.output = output;
    TRITONSERVER_MemoryType type;
    int64_t type_id;
    response->error = request->allocator->allocate(request->allocator, output.name.c_str(), output.data.size(),
                                                   TRITONSERVER_MEMORY_CPU, 0, request->allocator_userp, &buffer.data,
                                                   &buffer.userp, &type, &type_id);
    if (response->error != nullptr) break;
    if (!output.data.empty()) std::memcpy(buffer.data, output.data.data(), output.data.size());
    response->outputs.push_back(buffer);
  }
  request->respond(response, final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, request->respond_userp);
}

void RespondError(TRITONSERVER_InferenceRequest* request, TRITONSERVER_Error_Code code, const std::string& message) {
  auto* response = new TRITONSERVER_InferenceResponse;
  response->error = ErrorOf(code, message);
  request->respond(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, request->respond_userp);
}

void End(TRITONSERVER_InferenceRequest* request) {
  request->respond(nullptr, TRITONSERVER_RESPONSE_COMPLETE_FINAL, request->respond_userp);
}

void Release(TRITONSERVER_InferenceRequest* request) {
  request->at_server = false;
  request->release(request, TRITONSERVER_REQUEST_RELEASE_ALL, request->release_userp);
}

int64_t Requests() { return requests; }

}  // namespace fake_server

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator** allocator,
                                                      TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn,
                                                      TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn,
                                                      TRITONSERVER_ResponseAllocatorStartFn_t) {
  *allocator = new TRITONSERVER_ResponseAllocator{alloc_fn, release_fn};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(TRITONSERVER_ResponseAllocator*,
                                                                   TRITONSERVER_ResponseAllocatorQueryFn_t) {
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator* allocator) {
  delete allocator;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestNew(TRITONSERVER_InferenceRequest** request, TRITONSERVER_Server*,
                                                     const char* model_name, const int64_t) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (models.find(model_name) == models.end()) return ErrorOf(TRITONSERVER_ERROR_NOT_FOUND, "unknown model");
  *request = new TRITONSERVER_InferenceRequest;
  (*request)->model = model_name;
  ++requests;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest* request) {
  fake_triton::Require(!request->at_server, "a request that the server has is its own");
  delete request;
  --requests;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest* request, const char* id) {
  request->id = id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetFlags(TRITONSERVER_InferenceRequest* request, uint32_t flags) {
  request->flags = flags;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationId(TRITONSERVER_InferenceRequest* request,
                                                                  uint64_t correlation_id) {
  request->correlation = std::to_string(correlation_id);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationIdString(TRITONSERVER_InferenceRequest* request,
                                                                        const char* correlation_id) {
  request->correlation = correlation_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetPriority(TRITONSERVER_InferenceRequest*, uint32_t) {
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(TRITONSERVER_InferenceRequest*, uint64_t) {
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetStringParameter(TRITONSERVER_InferenceRequest* request,
                                                                    const char* key, const char* value) {
  request->parameters[key] = value;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetIntParameter(TRITONSERVER_InferenceRequest* request,
                                                                 const char* key, const int64_t value) {
  request->parameters[key] = std::to_string(value);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetBoolParameter(TRITONSERVER_InferenceRequest* request,
                                                                  const char* key, const bool value) {
  request->parameters[key] = value ? "true" : "false";
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetDoubleParameter(TRITONSERVER_InferenceRequest* request,
                                                                    const char* key, const double value) {
  request->parameters[key] = std::to_string(value);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(TRITONSERVER_InferenceRequest* request, const char* name,
                                                          const TRITONSERVER_DataType datatype, const int64_t* shape,
                                                          uint64_t dim_count) {
  TRITONSERVER_InferenceRequest::Input input;
  input.datatype = datatype;
  input.shape.assign(shape, shape + dim_count);
  if (!request->inputs.emplace(name, input).second) return ErrorOf(TRITONSERVER_ERROR_INVALID_ARG, "an input twice");
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest* request,
                                                                 const char* name, const void* base, size_t byte_size,
                                                                 TRITONSERVER_MemoryType, int64_t) {
  TRITONSERVER_InferenceRequest::Input& input = request->inputs.at(name);
  input.base = static_cast<const char*>(base);
  input.data.assign(input.base, byte_size);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest* request,
                                                                    const char* name) {
  request->outputs.push_back(name);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetReleaseCallback(TRITONSERVER_InferenceRequest* request,
                                                                    TRITONSERVER_InferenceRequestReleaseFn_t release_fn,
                                                                    void* userp) {
  request->release = release_fn;
  request->release_userp = userp;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator, void* allocator_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn, void* userp) {
  request->allocator = allocator;
  request->allocator_userp = allocator_userp;
  request->respond = response_fn;
  request->respond_userp = userp;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request) {
  request->cancelled = true;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server*, TRITONSERVER_InferenceRequest* request,
                                                  TRITONSERVER_InferenceTrace* trace) {
  if (request->inputs.empty()) {  // which it looks at before it takes the trace
    const std::lock_guard<std::mutex> lock(mutex);
    kept_traces.push_back(trace);
    return ErrorOf(TRITONSERVER_ERROR_INVALID_ARG, "expected 1 inputs but got 0 inputs");
  }
  Walk(trace);
  fake_server::Serve serve;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    serve = models[request->model];
  }
  if (!serve) return ErrorOf(TRITONSERVER_ERROR_UNAVAILABLE, "the model is not ready");
  request->cancelled = false;
  request->at_server = true;
  serve(request);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceNew(TRITONSERVER_InferenceTrace** trace,
                                                   TRITONSERVER_InferenceTraceLevel, uint64_t parent_id,
                                                   TRITONSERVER_InferenceTraceActivityFn_t activity_fn,
                                                   TRITONSERVER_InferenceTraceReleaseFn_t release_fn, void* userp) {
  *trace = reinterpret_cast<TRITONSERVER_InferenceTrace*>(new Trace{parent_id, activity_fn, release_fn, userp});
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceSetContext(TRITONSERVER_InferenceTrace*, const char* context) {
  fake_triton::Require(*context == '{', "a trace context is JSON");
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceParentId(TRITONSERVER_InferenceTrace* trace, uint64_t* parent_id) {
  *parent_id = reinterpret_cast<Trace*>(trace)->parent;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceDelete(TRITONSERVER_InferenceTrace* trace) {
  delete reinterpret_cast<Trace*>(trace);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse* response) {
  for (const auto& buffer : response->outputs) {
    TRITONSERVER_ErrorDelete(response->allocator->release(response->allocator, buffer.data, buffer.userp,
                                                          buffer.output.data.size(), TRITONSERVER_MEMORY_CPU, 0));
  }
  if (response->error != nullptr) TRITONSERVER_ErrorDelete(response->error);
  delete response;
  return nullptr;
}

// The caller's, as Triton's are, although its header says otherwise.
TRITONSERVER_Error* TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse* response) {
  return response->error == nullptr ? nullptr : new TRITONSERVER_Error(*response->error);
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseModel(TRITONSERVER_InferenceResponse* response,
                                                        const char** model_name, int64_t* model_version) {
  *model_name = response->model.c_str();
  *model_version = 1;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse* response, const char** id) {
  *id = response->id.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse*, uint32_t* count) {
  *count = 1;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameter(TRITONSERVER_InferenceResponse*, const uint32_t,
                                                            const char** name, TRITONSERVER_ParameterType* type,
                                                            const void** value) {
  static const int64_t seven = 7;
  *name = "seven";
  *type = TRITONSERVER_PARAMETER_INT;
  *value = &seven;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse* response,
                                                              uint32_t* count) {
  *count = static_cast<uint32_t>(response->outputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse* response, const uint32_t index,
                                                         const char** name, TRITONSERVER_DataType* datatype,
                                                         const int64_t** shape, uint64_t* dim_count, const void** base,
                                                         size_t* byte_size, TRITONSERVER_MemoryType* memory_type,
                                                         int64_t* memory_type_id, void** userp) {
  const auto& buffer = response->outputs.at(index);
  *name = buffer.output.name.c_str();
  *datatype = buffer.output.datatype;
  *shape = buffer.output.shape.data();
  *dim_count = buffer.output.shape.size();
  *base = buffer.data;
  *byte_size = buffer.output.data.size();
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  *userp = buffer.userp;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModelWithParameters(TRITONSERVER_Server*, const char* model_name,
                                                               const TRITONSERVER_Parameter** parameters,
                                                               const uint64_t parameter_count) {
  std::string given;
  for (uint64_t i = 0; i < parameter_count; ++i) given += parameters[i]->name + "=" + parameters[i]->value + ";";
  return ErrorOf(TRITONSERVER_ERROR_UNSUPPORTED, std::string(model_name) + " with " + given);
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server*, const char*) { return nullptr; }

TRITONSERVER_Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server*, const char* model_name, const int64_t,
                                                    bool* ready) {
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string name = model_name;
  if (name == "broken") return ErrorOf(TRITONSERVER_ERROR_INTERNAL, "it is broken");
  // As current servers do; older ones have no error, and say that it is not ready.
  if (models.find(name) == models.end()) return ErrorOf(TRITONSERVER_ERROR_NOT_FOUND, "unknown model");
  *ready = true;
  return nullptr;
}
}
