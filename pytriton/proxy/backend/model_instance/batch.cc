#include "model_instance/batch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/memory_copy.h"
#include "triton/bytes_tensor.h"
#include "triton/datatype.h"
#include "triton/error.h"
#include "triton/parameter.h"
#include "triton/reserved_parameters.h"

namespace pytriton {

namespace {

// Calls `body(data, size, device)` for each buffer of an input.
template <typename Body>
void ForEachBuffer(const InputView& view, Body body) {
  for (uint32_t i = 0; i < view.buffer_count; ++i) {
    const void* data = nullptr;
    uint64_t size = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    Check(TRITONBACKEND_InputBuffer(view.input, i, &data, &size, &type, &type_id));
    body(static_cast<const char*>(data), static_cast<int64_t>(size),
         type == TRITONSERVER_MEMORY_GPU ? type_id : kInMemory);
  }
}

// The input's bytes as one block, in `scratch` if Triton has them in several buffers, or on a GPU.
const char* Contiguous(const InputView& view, std::string* scratch) {
  const char* first = nullptr;
  bool is_copied = view.buffer_count != 1;
  ForEachBuffer(view, [&](const char* data, int64_t size, int64_t device) {
    first = data;
    is_copied = is_copied || device != kInMemory;
    if (!is_copied) return;
    scratch->resize(scratch->size() + size);
    CopyTensor(scratch->data() + scratch->size() - size, data, size, device);
  });
  return is_copied ? scratch->data() : first;
}

// The size that a sequence batcher reports for a correlation id that is a string, whatever its length.
constexpr int64_t kCorrelationTextSize = kLengthSize + 128;

bool IsCorrelationText(const InputView& view, int64_t count) {
  return count == 1 && view.byte_size == kCorrelationTextSize;
}

// Also determines where the data is.
void CheckData(InputView* input, const std::string& name) {
  InputView& view = *input;
  const int64_t count = ElementCount(view.shape, view.rank);
  bool fits = count >= 0;
  if (view.datatype == TRITONSERVER_TYPE_BYTES) {
    std::string scratch;
    const char* data = Contiguous(view, &scratch);
    int64_t used = 0;
    const auto add = [&used](const char*, uint32_t length) { used += kLengthSize + length; };
    fits = fits && (ForEachElement(data, view.byte_size, count, add) || (used > 0 && IsCorrelationText(view, count)));
  } else {
    ForEachBuffer(view, [&](const char*, int64_t, int64_t device) { view.device = std::max(view.device, device); });
    fits = fits && view.byte_size == count * ItemSize(view.datatype);
  }
  if (!fits) {
    throw TritonError(TRITONSERVER_ERROR_INVALID_ARG, "the data of input '" + name + "' (" +
                                                          std::to_string(view.byte_size) +
                                                          " bytes) does not match its shape and datatype");
  }
}

// Triton mistakes a batch of no samples for a request without a batch, and removes that dimension.
void CheckRank(const InputView& view, const std::string& name, uint32_t rank) {
  if (rank == 0 || view.rank == rank) return;
  throw TritonError(TRITONSERVER_ERROR_INVALID_ARG, "input '" + name + "' has " + std::to_string(view.rank) +
                                                        " dimensions instead of " + std::to_string(rank) +
                                                        ": a batch of 0 samples has no data");
}

Parameter ReadParameter(TRITONBACKEND_Request* request, uint32_t index) {
  const char* key = nullptr;
  TRITONSERVER_ParameterType type;
  const void* value = nullptr;
  Check(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
  return ToParameter(key, type, value);
}

void ReadCorrelation(TRITONBACKEND_Request* request, RequestOptions* options) {
  uint64_t number = 0;
  TRITONSERVER_Error* is_text = TRITONBACKEND_RequestCorrelationId(request, &number);
  if (is_text == nullptr) {
    options->correlation_id = static_cast<int64_t>(number);
    return;
  }
  TRITONSERVER_ErrorDelete(is_text);
  const char* text = nullptr;
  Check(TRITONBACKEND_RequestCorrelationIdString(request, &text));
  if (text != nullptr) options->correlation_string = text;
}

std::string ContextOf(TRITONSERVER_InferenceTrace* trace) {
  if (TRITONSERVER_InferenceTraceContext == nullptr) return "";
  const char* context = nullptr;
  TRITONSERVER_Error* none = TRITONSERVER_InferenceTraceContext(trace, &context);
  if (none != nullptr) TRITONSERVER_ErrorDelete(none);
  return context != nullptr ? context : "";
}

void ReadTrace(TRITONBACKEND_Request* request, RequestOptions* options) {
  TRITONSERVER_InferenceTrace* trace = TraceOf(request);
  if (trace == nullptr || TRITONSERVER_InferenceTraceId == nullptr) return;
  uint64_t number = 0;
  Check(TRITONSERVER_InferenceTraceId(trace, &number));
  options->trace = static_cast<int64_t>(number);
  options->trace_context = ContextOf(trace);
}

RequestOptions ReadOptions(TRITONBACKEND_Request* request) {
  RequestOptions options;
  ReadCorrelation(request, &options);
  uint32_t flags = 0;
  Check(TRITONBACKEND_RequestFlags(request, &flags));
  options.flags = flags;
  auto* sent = reinterpret_cast<TRITONSERVER_InferenceRequest*>(request);
  uint64_t number = 0;
  if (TRITONSERVER_InferenceRequestPriorityUInt64 != nullptr) {
    Check(TRITONSERVER_InferenceRequestPriorityUInt64(sent, &number));
    options.priority = static_cast<int64_t>(number);
  }
  if (TRITONSERVER_InferenceRequestTimeoutMicroseconds != nullptr) {
    Check(TRITONSERVER_InferenceRequestTimeoutMicroseconds(sent, &number));
    options.timeout_us = static_cast<int64_t>(number);
  }
  ReadTrace(request, &options);
  return options;
}

// The call chain is among the parameters, and is hidden from the callable.
RequestMetadata ReadMetadata(TRITONBACKEND_Request* request, CallChain* call_chain) {
  RequestMetadata metadata;
  const char* id = nullptr;
  Check(TRITONBACKEND_RequestId(request, &id));
  if (id != nullptr) metadata.id = id;
  uint32_t parameter_count = 0;
  Check(TRITONBACKEND_RequestParameterCount(request, &parameter_count));
  for (uint32_t i = 0; i < parameter_count; ++i) {
    Parameter parameter = ReadParameter(request, i);
    if (parameter.key == kCallersParameter) {
      Join(call_chain, ParseCallChain(parameter.text));
    } else {
      metadata.parameters.push_back(std::move(parameter));
    }
  }
  metadata.options = ReadOptions(request);
  return metadata;
}

bool IsWantedOnGpu(TRITONBACKEND_Request* request, const char* output) {
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t type_id = 0;
  TRITONSERVER_Error* unknown = TRITONBACKEND_RequestOutputBufferProperties(request, output, nullptr, &type, &type_id);
  if (unknown != nullptr) TRITONSERVER_ErrorDelete(unknown);
  return unknown == nullptr && type == TRITONSERVER_MEMORY_GPU;
}

// The index of `name`, searched from `guess` on: clients mostly use the configuration's order.
size_t Find(const std::vector<std::string>& names, const char* name, size_t guess) {
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t index = (guess + i) % names.size();
    if (names[index] == name) return index;
  }
  throw TritonError(TRITONSERVER_ERROR_INVALID_ARG, std::string("the worker does not know the tensor '") + name + "'");
}

}  // namespace

TRITONSERVER_InferenceTrace* TraceOf(TRITONBACKEND_Request* request) {
  if (TRITONBACKEND_RequestTrace == nullptr) return nullptr;
  TRITONSERVER_InferenceTrace* trace = nullptr;
  TRITONSERVER_Error* untraced = TRITONBACKEND_RequestTrace(request, &trace);
  if (untraced != nullptr) TRITONSERVER_ErrorDelete(untraced);  // a server that was built without traces
  return trace;
}

void CopyTensor(char* target, const char* source, int64_t size, int64_t device) {
  if (size == 0) return;  // empty buffers may have no address
  if (device == kInMemory) {
    CopyMemory(target, source, size);
  } else {
    cuda::Copy(target, source, size, device);
  }
}

Batch::Batch(const AdmissionMessage& model, const std::vector<uint32_t>& ranks, TRITONBACKEND_Request** requests,
             uint32_t request_count)
    : model_(model) {
  requests_.reserve(request_count);
  views_.reserve(request_count * model.inputs.size());
  wanted_.reserve(request_count * model.outputs.size());
  for (uint32_t i = 0; i < request_count; ++i) {
    try {
      Examine(requests[i], ranks);
      requests_.push_back(requests[i]);
    } catch (const TritonError& error) {
      rejections_.push_back({requests[i], error.code(), error.what()});
    } catch (const std::exception& error) {
      rejections_.push_back({requests[i], TRITONSERVER_ERROR_INTERNAL, error.what()});
    }
    views_.resize(requests_.size() * model.inputs.size());
    wanted_.resize(requests_.size() * model.outputs.size());
    message_.metadata.resize(requests_.size());
    if (model.batching) message_.rows.resize(requests_.size());
  }
  message_.request_count = static_cast<int64_t>(requests_.size());
  const auto& metadata = message_.metadata;
  if (std::all_of(metadata.begin(), metadata.end(), [](const RequestMetadata& each) { return each.empty(); })) {
    message_.metadata.clear();
  }
  for (size_t i = 0; i < requests_.size(); ++i) total_rows_ += rows(i);
}

void Batch::Examine(TRITONBACKEND_Request* request, const std::vector<uint32_t>& ranks) {
  const size_t row = requests_.size();
  views_.resize((row + 1) * model_.inputs.size());
  uint32_t input_count = 0;
  Check(TRITONBACKEND_RequestInputCount(request, &input_count));
  int64_t request_rows = 1;
  for (uint32_t i = 0; i < input_count; ++i) {
    InputView view;
    const char* name = nullptr;
    uint64_t byte_size = 0;
    Check(TRITONBACKEND_RequestInputByIndex(request, i, &view.input));
    Check(TRITONBACKEND_InputProperties(view.input, &name, &view.datatype, &view.shape, &view.rank, &byte_size,
                                        &view.buffer_count));
    view.byte_size = static_cast<int64_t>(byte_size);
    CheckData(&view, name);
    if (view.rank > 0) request_rows = view.shape[0];
    const size_t input = Find(model_.inputs, name, i);
    CheckRank(view, name, ranks[input]);
    views_[row * model_.inputs.size() + input] = view;
  }

  RequestMetadata metadata = ReadMetadata(request, &call_chain_);
  is_traced_ = is_traced_ || metadata.options.trace != 0;
  ExamineOutputs(request, &metadata);
  message_.metadata.resize(row + 1);
  message_.metadata[row] = std::move(metadata);
  if (model_.batching) {
    message_.rows.resize(row + 1);
    message_.rows[row] = request_rows;
  }
}

void Batch::ExamineOutputs(TRITONBACKEND_Request* request, RequestMetadata* metadata) {
  const size_t row = requests_.size();
  wanted_.resize((row + 1) * model_.outputs.size());
  uint32_t output_count = 0;
  Check(TRITONBACKEND_RequestOutputCount(request, &output_count));
  for (uint32_t i = 0; i < output_count; ++i) {
    const char* name = nullptr;
    Check(TRITONBACKEND_RequestOutputName(request, i, &name));
    wanted_[row * model_.outputs.size() + Find(model_.outputs, name, i)] = 1;
    if (!model_.gpus.empty()) message_.wants_gpu = message_.wants_gpu || IsWantedOnGpu(request, name);
  }
  for (size_t i = 0; i < model_.outputs.size(); ++i) {
    if (wanted_[row * model_.outputs.size() + i] != 0) metadata->outputs.push_back(static_cast<int64_t>(i));
  }
  metadata->all_outputs = metadata->outputs.size() == model_.outputs.size();
  if (metadata->all_outputs) metadata->outputs.clear();
}

// Whether the requests' tensors of one input can be stacked.
bool Batch::Stackable(size_t input) const {
  const InputView& first = view(0, input);
  for (size_t i = 0; i < requests_.size(); ++i) {
    const InputView& each = view(i, input);
    if (each.input == nullptr) return false;
    if (i > 0 && (each.rank == 0 || each.rank != first.rank || each.datatype != first.datatype ||
                  !std::equal(each.shape + 1, each.shape + each.rank, first.shape + 1))) {
      return false;
    }
  }
  return true;
}

// The GPU that holds the input of all requests, if the worker sees it; otherwise the one that the worker prefers.
cuda::GpuId Batch::GpuOf(size_t input) const {
  const std::vector<cuda::GpuId> gpus = GpuIdsOf(model_.gpus);
  const int64_t device = view(0, input).device;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (view(i, input).device != device || device == kInMemory) return gpus.front();
  }
  const cuda::GpuId gpu = cuda::IdOf(device);
  return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end() ? gpu : gpus.front();
}

// Whether a request has the input in the memory of a GPU.
bool Batch::IsOnGpu(size_t input) const {
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (view(i, input).device != kInMemory) return true;
  }
  return false;
}

void Batch::LayOut(bool with_devices) {
  message_.columns.clear();
  data_size_ = Aligned(message_.request_count);  // the cancel flags
  for (size_t input = 0; input < model_.inputs.size(); ++input) {
    TensorColumn column;
    column.position = static_cast<int64_t>(input);
    if (Stackable(input)) column.place = Place::kStacked;
    bool present = false;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const InputView& each = view(i, input);
      if (each.input == nullptr) {
        column.tensors.emplace_back();
        continue;
      }
      column.datatype = each.datatype;
      if (column.is_stacked() && i > 0) {
        column.tensors[0].size += each.byte_size;
        column.tensors[0].shape[0] += each.shape[0];
      } else {
        column.tensors.push_back({data_size_, each.byte_size, {each.shape, each.shape + each.rank}});
      }
      if (!column.is_stacked()) data_size_ += Aligned(each.byte_size);
      present = true;
    }
    if (with_devices && column.is_stacked() && column.datatype != TRITONSERVER_TYPE_BYTES && IsOnGpu(input)) {
      column.place = Place::kOnDevice;
      data_size_ += Aligned(sizeof(DeviceLocation));
    } else if (column.is_stacked()) {
      data_size_ += Aligned(column.tensors[0].size);
    }
    if (present) message_.columns.push_back(std::move(column));
  }
}

Block Batch::Write(Arena* arena, DeviceArena* device_arena, int64_t* size) {
  LayOut(device_arena != nullptr);
  MessageWriter writer;
  Encode(message_, &writer);
  *size = writer.head_size() + data_size_;
  block_ = arena->Allocate(*size);
  arena_ = arena;
  writer.CopyTo(block_.data);
  cancel_flags_ = block_.data + writer.head_size();
  std::memset(cancel_flags_, 0, requests_.size());
  try {
    WriteData(device_arena);
  } catch (const cuda::CudaError& error) {
    arena->Discard(block_);
    if (device_arena == nullptr) throw;
    if (device_arena->IsFirstFailure()) {
      Log(TRITONSERVER_LOG_WARN, std::string("tensors of a GPU are copied to memory: ") + error.what());
    }
    return Write(arena, nullptr, size);
  } catch (...) {
    arena->Discard(block_);
    throw;
  }
  return block_;
}

void Batch::Cancel(size_t request) const {
  // The block may have been reallocated.
  if (arena_->IsInUse(block_)) __atomic_store_n(cancel_flags_ + request, 1, __ATOMIC_RELEASE);
}

void Batch::WriteData(DeviceArena* device_arena) const {
  for (const TensorColumn& column : message_.columns) {
    if (column.place == Place::kOnDevice) {
      WriteOnDevice(column, device_arena);
    } else if (column.datatype == TRITONSERVER_TYPE_BYTES) {
      WriteStrings(column);
    } else {
      WriteNumbers(column);
    }
  }
}

void Batch::WriteNumbers(const TensorColumn& column) const {
  char* target = cancel_flags_ + column.tensors[0].offset;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const InputView& each = view(i, column.position);
    if (each.input == nullptr) continue;
    if (!column.is_stacked()) target = cancel_flags_ + column.tensors[i].offset;
    ForEachBuffer(each, [&](const char* source, int64_t size, int64_t device) {
      CopyTensor(target, source, size, device);
      target += size;
    });
  }
}

// First the lengths, then the contents; of all requests if they are stacked.
void Batch::WriteStrings(const TensorColumn& column) const {
  const TensorLocation& whole = column.tensors[0];
  char* target = cancel_flags_ + whole.offset;
  char* contents = target + ElementCount(whole.shape.data(), whole.shape.size()) * kLengthSize;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const InputView& each = view(i, column.position);
    if (each.input == nullptr) continue;
    const int64_t count = ElementCount(each.shape, each.rank);
    if (!column.is_stacked()) {
      target = cancel_flags_ + column.tensors[i].offset;
      contents = target + count * kLengthSize;
    }
    std::string scratch;
    const char* source = Contiguous(each, &scratch);
    const bool is_whole = ForEachElement(source, each.byte_size, count, [&](const char* element, uint32_t length) {
      std::memcpy(target, &length, kLengthSize);
      target += kLengthSize;
      std::memcpy(contents, element, length);
      contents += length;
    });
    if (is_whole || IsCorrelationText(each, count)) continue;
    throw TritonError(TRITONSERVER_ERROR_INVALID_ARG, "a client changes the shared memory of input '" +
                                                          model_.inputs[column.position] + "' while it is read");
  }
}

void Batch::WriteOnDevice(const TensorColumn& column, DeviceArena* device_arena) const {
  const TensorLocation& tensor = column.tensors[0];
  const cuda::Memory& memory = device_arena->Allocate(tensor.size, GpuOf(column.position), block_);
  const cuda::Context context(memory.device());
  char* target = memory.data();
  try {
    for (size_t i = 0; i < requests_.size(); ++i) {
      ForEachBuffer(view(i, column.position), [&](const char* source, int64_t size, int64_t) {
        cuda::StartCopy(target, source, size);
        target += size;
      });
    }
  } catch (...) {
    cuda::Wait();  // the memory is reused
    throw;
  }
  cuda::Wait();
  WriteLocation(memory, cancel_flags_ + tensor.offset);
}

}  // namespace pytriton
