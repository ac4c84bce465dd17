// Of the stand-in for the server: requests, their responses and statistics.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "fake_triton.h"

namespace {

using fake_triton::Require;

std::function<void()> response_hook;

std::mutex state_mutex;  // of what has come of requests and instances
std::condition_variable state_changed;

// The address of a buffer; that of a GPU's memory can be used by `fake_cuda.cc` alone.
void* AddressOf(const void* data, TRITONSERVER_MemoryType type) {
  constexpr uint64_t kOfDevice = uint64_t{1} << 62;
  const auto address = reinterpret_cast<uint64_t>(data);
  return reinterpret_cast<void*>(type == TRITONSERVER_MEMORY_GPU ? address | kOfDevice : address);
}

void RequireLiving(const TRITONBACKEND_Request* request) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  Require(!request->released, "a released request belongs to the server");
}

// Changes what has come of a request that is not answered yet.
template <typename Body>
void Change(const TRITONBACKEND_Request* request, bool final, Body body) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  Require(!request->released || (final && request->with_traced), "a released request belongs to the server");
  // The front ends end a trace once they have the final response.
  Require(request->released || !final || request->trace == 0, "a traced request is released before it is answered");
  Require(!request->answered, "nothing follows the final response");
  Require(final || request->decoupled, "a model that is not decoupled answers in one response");
  body();
  state_changed.notify_all();
}

}  // namespace

std::string TRITONBACKEND_Input::data() const {
  std::string whole;
  for (const Buffer& buffer : buffers) whole.append(buffer.data.begin(), buffer.data.end());
  return whole;
}

void TRITONBACKEND_Input::Split(const std::vector<size_t>& sizes) {
  const std::string whole = data();
  buffers.clear();
  size_t position = 0;
  for (size_t size : sizes) {
    const size_t end = std::min(whole.size(), position + size);
    buffers.push_back({{whole.begin() + position, whole.begin() + end}});
    position = end;
  }
  buffers.push_back({{whole.begin() + position, whole.end()}});
}

namespace fake_triton {

bool WaitUntil(const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(state_mutex);
  return state_changed.wait_for(lock, timeout, condition);
}

void SetResponseHook(std::function<void()> hook) { response_hook = std::move(hook); }

}  // namespace fake_triton

TRITONSERVER_Error* TRITONBACKEND_RequestId(TRITONBACKEND_Request* request, const char** id) {
  RequireLiving(request);
  *id = request->id.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request* request, uint64_t* id) {
  RequireLiving(request);
  *id = request->correlation_id;
  if (request->correlation_string.empty()) return nullptr;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "it is text");
}

TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request* request, const char** id) {
  RequireLiving(request);
  *id = request->correlation_string.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestFlags(TRITONBACKEND_Request* request, uint32_t* flags) {
  RequireLiving(request);
  *flags = request->flags;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestTrace(TRITONBACKEND_Request* request, TRITONSERVER_InferenceTrace** trace) {
  RequireLiving(request);
  if (request->trace == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "no traces");
  *trace = reinterpret_cast<TRITONSERVER_InferenceTrace*>(request);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceId(TRITONSERVER_InferenceTrace* trace, uint64_t* id) {
  *id = reinterpret_cast<TRITONBACKEND_Request*>(trace)->trace;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceContext(TRITONSERVER_InferenceTrace* trace, const char** context) {
  *context = reinterpret_cast<TRITONBACKEND_Request*>(trace)->trace_context.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestPriorityUInt64(TRITONSERVER_InferenceRequest* request,
                                                                uint64_t* priority) {
  *priority = reinterpret_cast<TRITONBACKEND_Request*>(request)->priority;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  RequireLiving(request);
  *count = static_cast<uint32_t>(request->inputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index,
                                                      TRITONBACKEND_Input** input) {
  RequireLiving(request);
  *input = &request->inputs.at(index);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  RequireLiving(request);
  *count = static_cast<uint32_t>(request->requested_outputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
  RequireLiving(request);
  *name = request->requested_outputs.at(index).c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputBufferProperties(TRITONBACKEND_Request* request, const char*, size_t*,
                                                                TRITONSERVER_MemoryType* memory_type,
                                                                int64_t* memory_type_id) {
  RequireLiving(request);
  *memory_type = request->output_memory;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count) {
  RequireLiving(request);
  *count = static_cast<uint32_t>(request->parameters.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request* request, uint32_t index, const char** key,
                                                   TRITONSERVER_ParameterType* type, const void** value) {
  RequireLiving(request);
  const TRITONBACKEND_Request::Parameter& parameter = request->parameters.at(index);
  *key = parameter.key.c_str();
  *type = parameter.type;
  *value = parameter.type == TRITONSERVER_PARAMETER_STRING ? static_cast<const void*>(parameter.text.c_str())
                                                           : static_cast<const void*>(&parameter.value);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t flags) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  Require(!request->released, "a released request belongs to the server");
  if (flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) {
    Require(!request->answered, "a request that was answered is not given back");
    if (!request->reschedulable) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "no such scheduler");
    request->rescheduled = true;
  } else {
    const bool is_held = request->with_traced && request->has_response;
    Require(request->answered || is_held, "a request is answered before it is released");
  }
  request->released = true;
  request->inputs.clear();  // the address sanitizer sees who still reads them
  state_changed.notify_all();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* datatype, const int64_t** shape,
                                                  uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count) {
  *name = input->name.c_str();
  *datatype = input->datatype;
  *shape = input->shape.data();
  *dims_count = static_cast<uint32_t>(input->shape.size());
  *byte_size = 0;
  for (const auto& buffer : input->buffers) *byte_size += buffer.data.size();
  *buffer_count = static_cast<uint32_t>(input->buffers.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
                                              int64_t* memory_type_id) {
  TRITONBACKEND_Input::Buffer& each = input->buffers.at(index);
  *buffer = AddressOf(each.data.data(), each.type);
  *buffer_byte_size = each.data.size();
  if (!each.later.empty() && each.is_read) std::copy(each.later.begin(), each.later.end(), each.data.begin());
  each.is_read = true;
  *memory_type = each.type;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  RequireLiving(request);
  if (response_hook) response_hook();
  request->has_response = true;
  *response = new TRITONBACKEND_Response{request, {}, {}};
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response* response) {
  delete response;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                                                 const char* name, TRITONSERVER_DataType datatype, const int64_t* shape,
                                                 uint32_t dims_count) {
  TRITONBACKEND_Output& each = response->outputs[name];
  Require(each.request == nullptr, "a response has an output once");
  each = {datatype, {shape, shape + dims_count}, {}, response->request};
  *output = &each;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetStringParameter(TRITONBACKEND_Response* response, const char* name,
                                                             const char* value) {
  response->parameters[name] = value;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response* response, const char* name,
                                                          int64_t value) {
  response->parameters[name] = std::to_string(value);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetBoolParameter(TRITONBACKEND_Response* response, const char* name,
                                                           bool value) {
  response->parameters[name] = value ? "true" : "false";
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetDoubleParameter(TRITONBACKEND_Response* response, const char* name,
                                                             double value) {
  response->parameters[name] = std::to_string(value);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t flags,
                                               TRITONSERVER_Error* error) {
  TRITONBACKEND_Request* request = response->request;
  const bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
  Change(request, final, [&] {
    request->answered = final;
    if (error != nullptr) {
      request->failed = true;
      request->error_code = error->code;
      request->error = error->message;
      request->outputs.clear();
    } else {
      request->outputs = response->outputs;
      request->response_parameters = response->parameters;
      request->responses.push_back(std::move(response->outputs));
    }
  });
  delete response;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory** factory,
                                                     TRITONBACKEND_Request* request) {
  RequireLiving(request);
  request->has_response = true;
  *factory = new TRITONBACKEND_ResponseFactory{request};
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory* factory) {
  delete factory;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory* factory, uint32_t flags) {
  TRITONBACKEND_Request* request = factory->request;
  Change(request, (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0, [&] {
    Require(request->decoupled, "a model that is not decoupled answers with a response");
    Require(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL, "flags without a response tell the end");
    request->answered = true;
  });
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  RequireLiving(request);
  *is_cancelled = request->cancelled;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestTimeoutMicroseconds(TRITONSERVER_InferenceRequest* request,
                                                                     uint64_t* timeout_us) {
  const auto* ours = reinterpret_cast<TRITONBACKEND_Request*>(request);
  RequireLiving(ours);
  *timeout_us = ours->timeout_us;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer, uint64_t byte_size,
                                               TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  *memory_type = output->request->output_memory;
  *memory_type_id = 0;
  output->data.resize(byte_size);
  *buffer = AddressOf(output->data.data(), *memory_type);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance* instance,
                                                                TRITONBACKEND_Request* request, bool success, uint64_t,
                                                                uint64_t, uint64_t, uint64_t) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  Require(!request->released, "a released request belongs to the server");
  const bool is_held = request->with_traced && !request->answered;
  Require(is_held || success != request->failed, "statistics say what came of a request");
  ++(success ? instance->succeeded : instance->failed);
  state_changed.notify_all();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance* instance,
                                                                     uint64_t batch_size, uint64_t exec_start_ns,
                                                                     uint64_t compute_start_ns, uint64_t compute_end_ns,
                                                                     uint64_t exec_end_ns) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  instance->batches.push_back({batch_size, {exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns}});
  state_changed.notify_all();
  return nullptr;
}
