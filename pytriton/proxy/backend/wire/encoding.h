// The encoding of messages: little-endian 64-bit words, a heap of strings, then tensor data. Counterpart of
// `wire/encoding.py`.
//
// All offsets are relative to the message's own parts, so a message can lie anywhere. docs/wire.md describes the layout
// word by word.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver.h"

namespace pytriton {

// Tensor data starts at multiples of this, so that any vector instruction may read it.
constexpr int64_t kAlignment = 64;

// Flags of a response.
constexpr int64_t kFinal = 1;     // it is the last of its request
constexpr int64_t kResponse = 2;  // it has a header and outputs
constexpr int64_t kFailed = 4;    // it has an error

constexpr int64_t Aligned(int64_t size) { return (size + kAlignment - 1) & ~(kAlignment - 1); }

class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The location of a tensor, relative to the message's data; an absent tensor has the offset -1. BYTES tensors hold the
// lengths of all elements (uint32 each), then their bytes back to back.
struct TensorLocation {
  int64_t offset = -1;
  int64_t size = 0;
  std::vector<int64_t> shape;
};

// The location of a tensor in the memory of a GPU, stored in the message's data instead of the tensor.
struct DeviceLocation {
  cuda::IpcHandle handle = {};
  cuda::GpuId gpu = {};
  int64_t offset = 0;  // of the tensor, in that memory
};
static_assert(sizeof(DeviceLocation) == 88);

// Parses the ids of GPUs that were sent as text. Throws ProtocolError.
std::vector<cuda::GpuId> GpuIdsOf(std::string_view text);

// The places of a column's tensors: kApart, each request's separately; otherwise stacked, that is, back to back along
// the first dimension, as a single tensor. kStacked: in this message; kInBatch: in the data of the batch, as an output
// that is part of an input; kOnDevice: in the memory of a GPU, and its offset is that of a DeviceLocation.
enum class Place : int64_t { kApart = 0, kStacked = 1, kInBatch = 2, kOnDevice = 3 };

// One input or output over all requests of a batch: one tensor if it is stacked, otherwise one per request.
struct TensorColumn {
  int64_t position = 0;  // of the input or output in the model's configuration
  int64_t datatype = 0;
  Place place = Place::kApart;
  std::vector<TensorLocation> tensors;

  bool is_stacked() const { return place != Place::kApart; }
};

enum class ParameterType : int64_t { kString = 0, kInt = 1, kBool = 2, kDouble = 4 };

struct Parameter {
  std::string key;
  ParameterType type = ParameterType::kString;
  std::string text;    // of a kString
  int64_t number = 0;  // of a kInt or kBool; the bits of a kDouble
};

// Collects the words and strings of a message. The first two words are the offsets of the heap and of the data.
class MessageWriter {
 public:
  MessageWriter() { Clear(); }

  void Clear() {
    words_.assign(2, 0);
    heap_.clear();
  }
  void Word(int64_t value) { words_.push_back(value); }
  void SetWord(int64_t position, int64_t value) { words_[position] = value; }
  // Number of words so far.
  int64_t word_count() const { return static_cast<int64_t>(words_.size()); }
  void Text(std::string_view text) {
    Word(static_cast<int64_t>(heap_.size()));
    Word(static_cast<int64_t>(text.size()));
    heap_.append(text);
  }
  void WriteTexts(const std::vector<std::string>& texts);
  void WriteColumn(const TensorColumn& column);
  void WriteColumns(const std::vector<TensorColumn>& columns);
  void WriteTensor(const TensorLocation& tensor);
  void WriteParameters(const std::vector<Parameter>& parameters);

  // Bytes before the data, which starts right there.
  int64_t head_size() const { return Aligned(static_cast<int64_t>(words_.size() * 8 + heap_.size())); }
  void CopyTo(char* target);
  // The message without its data.
  std::string ToString();

 private:
  std::vector<int64_t> words_;
  std::string heap_;
};

// Reads a message. The peer is not trusted: every access is checked against `size`.
class MessageReader {
 public:
  MessageReader(const char* message, int64_t size);

  int64_t Word();
  // Number of words before the next one.
  int64_t position() const { return position_; }
  // Reads a count of items of at least `words` words each; refuses a count that cannot fit before anything is
  // allocated.
  int64_t Count(int64_t words = 1);
  std::string_view Text();
  std::vector<std::string> ReadTexts();
  TensorColumn ReadColumn(int64_t request_count);
  std::vector<TensorColumn> ReadColumns(int64_t request_count);
  TensorLocation ReadTensor();
  // Reads the location of a tensor in the memory of a GPU, whose DeviceLocation lies in this message.
  TensorLocation ReadDeviceTensor();
  std::vector<Parameter> ReadParameters();
  int64_t data_offset() const { return data_offset_; }

 private:
  Place ReadPlace();
  TensorLocation ReadLocation();
  // Throws ProtocolError unless the bytes lie in this message, or the tensor is absent.
  void CheckIsPart(int64_t offset, int64_t size) const;

  const char* message_;
  int64_t size_;
  int64_t position_ = 0;  // in words
  int64_t word_count_ = 0;
  int64_t heap_offset_ = 0;
  int64_t data_offset_ = 0;
};

}  // namespace pytriton
