#include "model_instance/output_reader.h"

#include <cstring>
#include <string>

#include "triton/bytes_tensor.h"
#include "triton/datatype.h"
#include "triton/error.h"

namespace pytriton {

namespace {

uint32_t LengthAt(const char* lengths, int64_t element) {
  uint32_t length;
  std::memcpy(&length, lengths + element * kLengthSize, kLengthSize);
  return length;
}

// Writes strings in Triton's layout: each length before its element. There is room for `size` bytes, even if the worker
// changes the lengths meanwhile.
void PutStrings(char* target, int64_t size, const char* lengths, const char* source, int64_t count) {
  const char* const end = target + size;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t length = LengthAt(lengths, i);
    if (end - target < kLengthSize + int64_t{length})
      throw ProtocolError("the worker changed a message after sending it");
    std::memcpy(target, &length, kLengthSize);
    std::memcpy(target + kLengthSize, source, length);
    target += kLengthSize + length;
    source += length;
  }
}

}  // namespace

OutputReader::OutputReader(const TensorColumn& column, const char* data, int64_t total_rows)
    : column_(column), data_(data), total_rows_(total_rows) {
  if (column.is_stacked() && column.place != Place::kOnDevice) Start(column.tensors[0]);
}

void OutputReader::OpenOnDevice(PeerDeviceArena* arena) {
  const TensorLocation& tensor = column_.tensors[0];
  data_ = arena->At(data_ + tensor.offset, tensor.size, &device_);
  Start({0, tensor.size, tensor.shape});
}

void OutputReader::Next(size_t request, int64_t rows, TRITONBACKEND_Response* response, const char* name) {
  if (!column_.is_stacked()) {
    const TensorLocation& tensor = column_.tensors[request];
    if (tensor.offset < 0) return;
    Start(tensor);
    return Take(tensor.shape, response, name);
  }
  std::vector<int64_t> shape = column_.tensors[0].shape;
  if (!shape.empty() && shape[0] == total_rows_) shape[0] = rows;
  Take(shape, response, name);
}

void OutputReader::Start(const TensorLocation& tensor) {
  const int64_t count = ElementCount(tensor.shape.data(), tensor.shape.size());
  const bool is_bytes = column_.datatype == TRITONSERVER_TYPE_BYTES;
  const int64_t least = count * (is_bytes ? kLengthSize : ItemSize(column_.datatype));
  if (count < 0 || tensor.offset < 0 || (is_bytes ? tensor.size < least : tensor.size != least)) {
    throw ProtocolError("the worker sent a tensor whose size does not match its shape");
  }
  position_ = data_ + tensor.offset;
  contents_ = position_ + (is_bytes ? least : 0);
  end_ = position_ + tensor.size;
}

// The bytes of the next strings.
int64_t OutputReader::ContentsSize(int64_t count) const {
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) size += LengthAt(position_, i);
  if (size > end_ - contents_) throw ProtocolError("the worker sent strings that overrun their tensor");
  return size;
}

void OutputReader::Take(const std::vector<int64_t>& shape, TRITONBACKEND_Response* response, const char* name) {
  const int64_t count = ElementCount(shape.data(), shape.size());
  const bool is_bytes = column_.datatype == TRITONSERVER_TYPE_BYTES;
  const int64_t contents_size = is_bytes ? ContentsSize(count) : 0;
  const int64_t size = is_bytes ? count * kLengthSize + contents_size : count * ItemSize(column_.datatype);
  // Advanced first, so that the following requests are read correctly even if this buffer cannot be allocated.
  const char* const lengths = position_;
  const char* const source = is_bytes ? contents_ : position_;
  position_ += is_bytes ? count * kLengthSize : size;
  contents_ += contents_size;
  if (response == nullptr) return;
  const OutputBuffer buffer = Allocate(response, name, shape, size);
  if (!is_bytes) return Copy(buffer, source, size);
  if (buffer.device == kInMemory) return PutStrings(buffer.data, size, lengths, source, count);
  std::string strings(size, '\0');
  PutStrings(strings.data(), size, lengths, source, count);
  Copy(buffer, strings.data(), size);
}

void OutputReader::Copy(const OutputBuffer& buffer, const char* source, int64_t size) const {
  CopyTensor(buffer.data, source, size, device_ != kInMemory ? device_ : buffer.device);
}

OutputReader::OutputBuffer OutputReader::Allocate(TRITONBACKEND_Response* response, const char* name,
                                                  const std::vector<int64_t>& shape, int64_t size) const {
  TRITONBACKEND_Output* output = nullptr;
  Check(TRITONBACKEND_ResponseOutput(response, &output, name, static_cast<TRITONSERVER_DataType>(column_.datatype),
                                     shape.data(), static_cast<uint32_t>(shape.size())));
  void* buffer = nullptr;
  // Only a preference; the client decides.
  TRITONSERVER_MemoryType type = device_ == kInMemory ? TRITONSERVER_MEMORY_CPU : TRITONSERVER_MEMORY_GPU;
  int64_t type_id = device_ == kInMemory ? 0 : device_;
  Check(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &type_id));
  return {static_cast<char*>(buffer), type == TRITONSERVER_MEMORY_GPU ? type_id : kInMemory};
}

}  // namespace pytriton
