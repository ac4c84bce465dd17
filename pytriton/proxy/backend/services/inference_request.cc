#include "services/inference_request.h"

#include <cstring>
#include <utility>
#include <vector>

#include "services/call_chain.h"
#include "services/call_trace.h"
#include "services/service_channel.h"
#include "triton/bytes_tensor.h"
#include "triton/datatype.h"
#include "triton/error.h"
#include "triton/parameter.h"
#include "triton/reserved_parameters.h"

namespace pytriton {

// The handle of an output's block, which Triton keeps.
struct OutputBlock {
  std::shared_ptr<Arena> arena;
  Block block;
  bool is_sent = false;  // the worker releases it
};

namespace {

// Reorders a BYTES tensor to the layout of the worker: all lengths, then all elements.
void PutLengthsFirst(char* data, int64_t size, int64_t count, const char* name) {
  const std::string source(data, size);
  char* lengths = data;
  char* contents = data + count * kLengthSize;
  const bool fits = count >= 0 && ForEachElement(source.data(), size, count, [&](const char* element, uint32_t length) {
                      std::memcpy(lengths, &length, kLengthSize);
                      lengths += kLengthSize;
                      std::memcpy(contents, element, length);
                      contents += length;
                    });
  if (!fits) {
    throw TritonError(TRITONSERVER_ERROR_INTERNAL,
                      std::string("the data of output '") + name + "' does not match its shape and datatype");
  }
}

InferenceReplyOutput ToOutput(TRITONSERVER_InferenceResponse* response, uint32_t index,
                              std::vector<OutputBlock*>* blocks) {
  const char* name = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint64_t rank = 0;
  const void* data = nullptr;
  size_t size = 0;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  void* userp = nullptr;
  Check(TRITONSERVER_InferenceResponseOutput(response, index, &name, &datatype, &shape, &rank, &data, &size,
                                             &memory_type, &memory_type_id, &userp));
  InferenceReplyOutput output;
  output.name = name;
  output.datatype = datatype;
  output.shape.assign(shape, shape + rank);
  auto* block = static_cast<OutputBlock*>(userp);
  if (block == nullptr || size == 0) return output;
  if (memory_type == TRITONSERVER_MEMORY_GPU) output.datatype |= kOnDevice;
  if (datatype == TRITONSERVER_TYPE_BYTES) {
    if (IsOnDevice(output.datatype)) throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED, "strings of a GPU are not read");
    PutLengthsFirst(block->block.data, static_cast<int64_t>(size), ElementCount(shape, rank), name);
  }
  output.offset = block->block.offset;
  output.size = static_cast<int64_t>(size);
  blocks->push_back(block);
  return output;
}

// `blocks` receives the outputs' blocks. Throws TritonError if the request failed.
InferenceReplyMessage ToReply(TRITONSERVER_InferenceResponse* response, bool final, std::vector<OutputBlock*>* blocks) {
  InferenceReplyMessage reply;
  reply.final = final;
  if (response == nullptr) return reply;
  // Deletes the error: although Triton's header says that the response owns it, each call returns a new one.
  Check(TRITONSERVER_InferenceResponseError(response));
  reply.response = true;
  const char* text = nullptr;
  Check(TRITONSERVER_InferenceResponseModel(response, &text, &reply.version));
  reply.model = text;
  Check(TRITONSERVER_InferenceResponseId(response, &text));
  if (text != nullptr) reply.request_id = text;
  uint32_t count = 0;
  Check(TRITONSERVER_InferenceResponseParameterCount(response, &count));
  for (uint32_t i = 0; i < count; ++i) {
    TRITONSERVER_ParameterType type;
    const void* value = nullptr;
    Check(TRITONSERVER_InferenceResponseParameter(response, i, &text, &type, &value));
    reply.parameters.push_back(ToParameter(text, type, value));
  }
  Check(TRITONSERVER_InferenceResponseOutputCount(response, &count));
  for (uint32_t i = 0; i < count; ++i) reply.outputs.push_back(ToOutput(response, i, blocks));
  return reply;
}

}  // namespace

OutputAllocator::OutputAllocator() {
  Check(TRITONSERVER_ResponseAllocatorNew(&allocator_, InferenceRequest::Allocate, InferenceRequest::Release, nullptr));
  Check(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator_, InferenceRequest::Query));
}

OutputAllocator::~OutputAllocator() {
  LogIfError(TRITONSERVER_ResponseAllocatorDelete(allocator_), "cannot delete a response allocator");
}

InferenceRequest::InferenceRequest(std::shared_ptr<ServiceChannel> channel, int64_t number, PeerBlock message)
    : channel_(std::move(channel)), number_(number), message_(std::move(message)) {}

InferenceRequest::~InferenceRequest() {
  if (request_ != nullptr) LogIfError(TRITONSERVER_InferenceRequestDelete(request_), "cannot delete a request");
}

void InferenceRequest::Start(const std::shared_ptr<ServiceChannel>& channel, int64_t number,
                             const InferenceCallMessage& call, const char* data, PeerBlock message,
                             const std::string& call_chain) {
  auto* inference = new InferenceRequest(channel, number, std::move(message));
  bool is_known = false;
  try {
    inference->Prepare(call, data, call_chain);
    channel->Add(number, inference);
    is_known = true;
    TRITONSERVER_InferenceTrace* trace = NewCallTrace(channel, number, call.trace_context);
    Check(TRITONSERVER_ServerInferAsync(channel->server(), inference->request_, trace));
  } catch (...) {
    if (is_known) channel->Remove(number);
    delete inference;
    throw;
  }
}

void InferenceRequest::Prepare(const InferenceCallMessage& call, const char* data, const std::string& call_chain) {
  Check(TRITONSERVER_InferenceRequestNew(&request_, channel_->server(), call.model.c_str(), call.version));
  if (!call.preferred_gpu.empty()) preferred_gpu_ = GpuIdsOf(call.preferred_gpu).front();
  if (!call.request_id.empty()) Check(TRITONSERVER_InferenceRequestSetId(request_, call.request_id.c_str()));
  if (call.flags != 0) {
    Check(TRITONSERVER_InferenceRequestSetFlags(request_, static_cast<uint32_t>(call.flags)));
  }
  if (!call.correlation_text.empty()) {
    Check(TRITONSERVER_InferenceRequestSetCorrelationIdString(request_, call.correlation_text.c_str()));
  } else if (call.correlation_number != 0) {
    Check(TRITONSERVER_InferenceRequestSetCorrelationId(request_, static_cast<uint64_t>(call.correlation_number)));
  }
  if (call.priority != 0) {
    Check(TRITONSERVER_InferenceRequestSetPriority(request_, static_cast<uint32_t>(call.priority)));
  }
  if (call.timeout_us != 0) {
    Check(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request_, static_cast<uint64_t>(call.timeout_us)));
  }
  for (const Parameter& parameter : call.parameters) SetParameter(request_, parameter);
  if (!call_chain.empty()) {
    Check(TRITONSERVER_InferenceRequestSetStringParameter(request_, kCallersParameter, call_chain.c_str()));
  }
  for (const InferenceCallInput& input : call.inputs) AddInput(input, data);
  for (const std::string& output : call.outputs) {
    Check(TRITONSERVER_InferenceRequestAddRequestedOutput(request_, output.c_str()));
  }
  SetCallbacks();
}

void InferenceRequest::AddInput(const InferenceCallInput& input, const char* data) {
  const char* name = input.name.c_str();
  Check(TRITONSERVER_InferenceRequestAddInput(request_, name,
                                              static_cast<TRITONSERVER_DataType>(input.datatype & ~kOnDevice),
                                              input.tensor.shape.data(), input.tensor.shape.size()));
  if (input.tensor.offset < 0) throw ProtocolError("a worker sent an input without data");
  const char* tensor = data + input.tensor.offset;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  if (IsOnDevice(input.datatype)) {
    memory_type = TRITONSERVER_MEMORY_GPU;
    tensor = channel_->worker_device_arena()->At(tensor, input.tensor.size, &device);
  }
  Check(TRITONSERVER_InferenceRequestAppendInputData(request_, name, tensor, input.tensor.size, memory_type, device));
}

void InferenceRequest::SetCallbacks() {
  Check(TRITONSERVER_InferenceRequestSetReleaseCallback(
      request_,
      [](TRITONSERVER_InferenceRequest*, const uint32_t flags, void* self) {
        if ((flags & TRITONSERVER_REQUEST_RELEASE_ALL) == 0) return;
        auto* inference = static_cast<InferenceRequest*>(self);
        inference->message_.Release();
        inference->Drop();
      },
      this));
  Check(TRITONSERVER_InferenceRequestSetResponseCallback(
      request_, channel_->allocator(), this,
      [](TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* self) {
        static_cast<InferenceRequest*>(self)->Respond(response, (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0);
      },
      this));
}

void InferenceRequest::Cancel() {
  if (TRITONSERVER_InferenceRequestCancel == nullptr) return;
  LogIfError(TRITONSERVER_InferenceRequestCancel(request_), "cannot cancel a request");
}

void InferenceRequest::Respond(TRITONSERVER_InferenceResponse* response, bool final) {
  if (final) channel_->Remove(number_);
  InferenceReplyMessage reply;
  std::vector<OutputBlock*> blocks;
  TRITONSERVER_Error* error = Guarded([&] { reply = ToReply(response, final, &blocks); });
  if (error != nullptr) {
    blocks.clear();
    reply = InferenceReplyMessage();
    reply.final = final;
    reply.failed = true;
    reply.code = TRITONSERVER_ErrorCode(error);
    reply.message = TRITONSERVER_ErrorMessage(error);
    TRITONSERVER_ErrorDelete(error);
  }
  if ((response != nullptr || final) && channel_->Reply(number_, reply)) {
    for (OutputBlock* block : blocks) block->is_sent = true;
  }
  if (response != nullptr) LogIfError(TRITONSERVER_InferenceResponseDelete(response), "cannot delete a response");
  if (final) Drop();
}

void InferenceRequest::Drop() {
  if (--users_ == 0) delete this;
}

TRITONSERVER_Error* InferenceRequest::Query(TRITONSERVER_ResponseAllocator*, void* self, const char*, size_t*,
                                            TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  if (!static_cast<InferenceRequest*>(self)->preferred_gpu_.has_value()) *memory_type = TRITONSERVER_MEMORY_CPU;
  if (*memory_type != TRITONSERVER_MEMORY_GPU) *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* InferenceRequest::Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t size,
                                               TRITONSERVER_MemoryType preferred_type, int64_t, void* self,
                                               void** buffer, void** output, TRITONSERVER_MemoryType* memory_type,
                                               int64_t* memory_type_id) {
  return Guarded([&] {
    *buffer = nullptr;
    *output = nullptr;
    *memory_type = TRITONSERVER_MEMORY_CPU;
    *memory_type_id = 0;
    if (size == 0) return;
    auto* const inference = static_cast<InferenceRequest*>(self);
    auto block = std::make_unique<OutputBlock>();
    block->arena = inference->channel_->arena();
    const bool on_device = inference->preferred_gpu_.has_value() && preferred_type == TRITONSERVER_MEMORY_GPU;
    if (on_device && inference->AllocateOnDevice(static_cast<int64_t>(size), block.get(), buffer, memory_type_id)) {
      *memory_type = TRITONSERVER_MEMORY_GPU;
    } else {
      block->block = block->arena->Allocate(static_cast<int64_t>(size));
      *buffer = block->block.data;
    }
    *output = block.release();
  });
}

bool InferenceRequest::AllocateOnDevice(int64_t size, OutputBlock* block, void** buffer, int64_t* device) {
  block->block = block->arena->Allocate(sizeof(DeviceLocation));
  try {
    const cuda::Memory& memory = channel_->AllocateOnDevice(size, *preferred_gpu_, block->block);
    *buffer = memory.data();
    *device = memory.device();
    return true;
  } catch (const cuda::CudaError& error) {
    block->arena->Discard(block->block);
    if (channel_->IsFirstGpuFailure()) {
      Log(TRITONSERVER_LOG_WARN, std::string("tensors of a GPU are copied to memory: ") + error.what());
    }
    return false;
  }
}

TRITONSERVER_Error* InferenceRequest::Release(TRITONSERVER_ResponseAllocator*, void*, void* output, size_t,
                                              TRITONSERVER_MemoryType, int64_t) {
  const std::unique_ptr<OutputBlock> block(static_cast<OutputBlock*>(output));
  if (block != nullptr && !block->is_sent) block->arena->Discard(block->block);
  return nullptr;
}

}  // namespace pytriton
