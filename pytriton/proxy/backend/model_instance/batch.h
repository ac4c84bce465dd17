// The requests of one batch, copied from Triton to the worker's shared memory.
#pragma once

#include <string>
#include <vector>

#include "services/call_chain.h"
#include "transport/arena.h"
#include "transport/device_arena.h"
#include "triton/api.h"
#include "wire/inference.h"
#include "wire/registration.h"

namespace pytriton {

// Instead of a GPU's number: host memory.
constexpr int64_t kInMemory = -1;

// Copies a tensor, or a part of one; `device` is the GPU if either is on one, otherwise kInMemory.
void CopyTensor(char* target, const char* source, int64_t size, int64_t device);

// The trace of a request; null if it is not traced.
TRITONSERVER_InferenceTrace* TraceOf(TRITONBACKEND_Request* request);

// A request's input in Triton's memory. Absent (optional) inputs have no `input`.
struct InputView {
  TRITONBACKEND_Input* input = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint32_t rank = 0;
  uint32_t buffer_count = 0;
  int64_t byte_size = 0;
  int64_t device = kInMemory;  // the GPU in whose memory it lies, or a part of it
};

// A request that cannot be sent to the worker, and the reason.
struct Rejection {
  TRITONBACKEND_Request* request;
  TRITONSERVER_Error_Code code;
  std::string reason;
};

class Batch {
 public:
  // Examines the requests; those that cannot be served become rejections. `ranks`: the number of dimensions of each
  // input of the model, 0 if it is unknown. `model` outlives the batch.
  Batch(const AdmissionMessage& model, const std::vector<uint32_t>& ranks, TRITONBACKEND_Request** requests,
        uint32_t request_count);

  const std::vector<TRITONBACKEND_Request*>& requests() const { return requests_; }
  const std::vector<Rejection>& rejections() const { return rejections_; }
  // Whether the server traces any of the requests, or of the rejected ones.
  bool is_traced() const { return is_traced_; }

  // First dimension of each request; 1 if the model does not batch.
  int64_t rows(size_t request) const { return message_.rows.empty() ? 1 : message_.rows[request]; }
  // The call chains of all requests, if workers have sent them.
  const CallChain& call_chain() const { return call_chain_; }
  int64_t total_rows() const { return total_rows_; }
  bool wants(size_t request, size_t output) const { return wanted_[request * model_.outputs.size() + output] != 0; }

  // Copies the requests into a block of the arena: the message's header, then the tensors, those of one input side by
  // side. Tensors that lie in the memory of a GPU stay there if `device_arena` is given. Sets `size` to the message's
  // size. Throws ArenaError, or CudaError.
  Block Write(Arena* arena, DeviceArena* device_arena, int64_t* size);

  // The data of the message, once it is written: the cancel flags, and the tensors.
  const char* data() const { return cancel_flags_; }
  int64_t data_size() const { return data_size_; }

  // Sets a request's cancel flag, unless the worker has released the batch. Nothing may be allocated in the arena at
  // the same time.
  void Cancel(size_t request) const;

 private:
  void WriteData(DeviceArena* device_arena) const;
  void WriteNumbers(const TensorColumn& column) const;
  void WriteStrings(const TensorColumn& column) const;
  void WriteOnDevice(const TensorColumn& column, DeviceArena* device_arena) const;
  bool IsOnGpu(size_t input) const;
  cuda::GpuId GpuOf(size_t input) const;
  void Examine(TRITONBACKEND_Request* request, const std::vector<uint32_t>& ranks);
  void ExamineOutputs(TRITONBACKEND_Request* request, RequestMetadata* metadata);
  void LayOut(bool with_devices);
  bool Stackable(size_t input) const;
  const InputView& view(size_t request, size_t input) const { return views_[request * model_.inputs.size() + input]; }

  const AdmissionMessage& model_;
  std::vector<TRITONBACKEND_Request*> requests_;
  std::vector<Rejection> rejections_;
  CallChain call_chain_;
  std::vector<InputView> views_;       // requests x inputs
  std::vector<unsigned char> wanted_;  // requests x outputs
  BatchMessage message_;
  bool is_traced_ = false;
  int64_t total_rows_ = 0;
  int64_t data_size_ = 0;
  Arena* arena_ = nullptr;
  Block block_;                   // the arena of the block
  char* cancel_flags_ = nullptr;  // a byte per request: 1 if it is cancelled
};

}  // namespace pytriton
