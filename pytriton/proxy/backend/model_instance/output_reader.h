// Reads the requests' parts of an output, and copies them to buffers of Triton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model_instance/batch.h"
#include "transport/device_arena.h"
#include "triton/api.h"
#include "wire/encoding.h"

namespace pytriton {

class OutputReader {
 public:
  // `data`: where the column's offsets count from. `total_rows`: of the batch. `column` outlives the reader. Throws
  // ProtocolError if a stacked tensor does not match its shape.
  OutputReader(const TensorColumn& column, const char* data, int64_t total_rows);

  // Opens the tensor of a column in the memory of a GPU. Throws CudaError, or ProtocolError.
  void OpenOnDevice(PeerDeviceArena* arena);

  // Reads the next request's part, of which there is one per request, in order. Adds it to `response` as the output
  // `name`, unless `response` is null. Throws ProtocolError if the worker's data is malformed, or TritonError or
  // CudaError if it cannot be copied; the next part can still be read in the latter cases.
  void Next(size_t request, int64_t rows, TRITONBACKEND_Response* response, const char* name);

 private:
  // A buffer that Triton has allocated for an output; `device` is its GPU, or kInMemory.
  struct OutputBuffer {
    char* data;
    int64_t device;
  };

  void Start(const TensorLocation& tensor);
  void Take(const std::vector<int64_t>& shape, TRITONBACKEND_Response* response, const char* name);
  int64_t ContentsSize(int64_t count) const;
  void Copy(const OutputBuffer& buffer, const char* source, int64_t size) const;
  OutputBuffer Allocate(TRITONBACKEND_Response* response, const char* name, const std::vector<int64_t>& shape,
                        int64_t size) const;

  const TensorColumn& column_;
  const char* data_;
  int64_t device_ = kInMemory;  // the GPU in whose memory the column lies
  const int64_t total_rows_;
  const char* position_ = nullptr;  // of the next element, or with BYTES of its length
  const char* contents_ = nullptr;  // with BYTES, of the next element
  const char* end_ = nullptr;
};

}  // namespace pytriton
