#include "wire/encoding.h"

#include <cstring>

namespace pytriton {

std::vector<cuda::GpuId> GpuIdsOf(std::string_view text) {
  std::vector<cuda::GpuId> gpus(text.size() / sizeof(cuda::GpuId));
  if (text.size() % sizeof(cuda::GpuId) != 0) throw ProtocolError("a message has a malformed id of a GPU");
  std::memcpy(gpus.data(), text.data(), text.size());
  return gpus;
}

void MessageWriter::WriteTexts(const std::vector<std::string>& texts) {
  Word(static_cast<int64_t>(texts.size()));
  for (const std::string& text : texts) Text(text);
}

void MessageWriter::WriteColumns(const std::vector<TensorColumn>& columns) {
  Word(static_cast<int64_t>(columns.size()));
  for (const TensorColumn& column : columns) WriteColumn(column);
}

void MessageWriter::WriteColumn(const TensorColumn& column) {
  Word(column.position);
  Word(column.datatype);
  Word(static_cast<int64_t>(column.place));
  for (const TensorLocation& tensor : column.tensors) WriteTensor(tensor);
}

void MessageWriter::WriteTensor(const TensorLocation& tensor) {
  Word(tensor.offset);
  Word(tensor.size);
  Word(static_cast<int64_t>(tensor.shape.size()));
  for (int64_t dim : tensor.shape) Word(dim);
}

void MessageWriter::WriteParameters(const std::vector<Parameter>& parameters) {
  Word(static_cast<int64_t>(parameters.size()));
  for (const Parameter& parameter : parameters) {
    Text(parameter.key);
    Word(static_cast<int64_t>(parameter.type));
    if (parameter.type == ParameterType::kString) {
      Text(parameter.text);
    } else {
      Word(parameter.number);
    }
  }
}

void MessageWriter::CopyTo(char* target) {
  const size_t words_size = words_.size() * 8;
  words_[0] = static_cast<int64_t>(words_size);
  words_[1] = head_size();
  std::memcpy(target, words_.data(), words_size);
  std::memcpy(target + words_size, heap_.data(), heap_.size());
}

std::string MessageWriter::ToString() {
  std::string message(head_size(), '\0');
  CopyTo(message.data());
  return message;
}

MessageReader::MessageReader(const char* message, int64_t size) : message_(message), size_(size) {
  word_count_ = size / 8;
  heap_offset_ = Word();
  data_offset_ = Word();
  if (heap_offset_ < 16 || heap_offset_ > data_offset_ || data_offset_ > size) {
    throw ProtocolError("the parts of a message lie outside it");
  }
  word_count_ = heap_offset_ / 8;
}

int64_t MessageReader::Word() {
  if (position_ >= word_count_) throw ProtocolError("a message ends too early");
  int64_t value;
  std::memcpy(&value, message_ + position_ * 8, sizeof(value));
  ++position_;
  return value;
}

int64_t MessageReader::Count(int64_t words) {
  const int64_t count = Word();
  if (count < 0 || count > (word_count_ - position_) / words) {
    throw ProtocolError("a message has a count larger than its contents");
  }
  return count;
}

std::string_view MessageReader::Text() {
  const int64_t offset = Word();
  const int64_t size = Word();
  const int64_t heap_size = data_offset_ - heap_offset_;
  if (offset < 0 || size < 0 || offset > heap_size || size > heap_size - offset) {
    throw ProtocolError("a string lies outside its message");
  }
  return {message_ + heap_offset_ + offset, static_cast<size_t>(size)};
}

TensorColumn MessageReader::ReadColumn(int64_t request_count) {
  TensorColumn column;
  column.position = Word();
  column.datatype = Word();
  column.place = ReadPlace();
  const int64_t tensors = column.is_stacked() ? 1 : request_count;
  if (tensors > (word_count_ - position_) / 3) throw ProtocolError("a message has a count larger than its contents");
  column.tensors.reserve(tensors);
  for (int64_t i = 0; i < tensors; ++i) {
    column.tensors.push_back(column.place == Place::kOnDevice  ? ReadDeviceTensor()
                             : column.place == Place::kInBatch ? ReadLocation()
                                                               : ReadTensor());
  }
  return column;
}

Place MessageReader::ReadPlace() {
  const int64_t place = Word();
  if (place < static_cast<int64_t>(Place::kApart) || place > static_cast<int64_t>(Place::kOnDevice)) {
    throw ProtocolError("a message has a column in an unknown place: " + std::to_string(place));
  }
  return static_cast<Place>(place);
}

TensorLocation MessageReader::ReadTensor() {
  TensorLocation tensor = ReadLocation();
  CheckIsPart(tensor.offset, tensor.size);
  return tensor;
}

TensorLocation MessageReader::ReadDeviceTensor() {
  TensorLocation tensor = ReadLocation();
  CheckIsPart(tensor.offset, sizeof(DeviceLocation));
  return tensor;
}

void MessageReader::CheckIsPart(int64_t offset, int64_t size) const {
  const int64_t room = size_ - data_offset_;
  if (offset >= 0 && (size < 0 || offset > room || size > room - offset)) {
    throw ProtocolError("a tensor lies outside its message");
  }
}

TensorLocation MessageReader::ReadLocation() {
  TensorLocation tensor;
  tensor.offset = Word();
  tensor.size = Word();
  tensor.shape.resize(Count());
  for (int64_t& dim : tensor.shape) dim = Word();
  return tensor;
}

std::vector<Parameter> MessageReader::ReadParameters() {
  std::vector<Parameter> parameters(Count(4));
  for (Parameter& parameter : parameters) {
    parameter.key = Text();
    parameter.type = static_cast<ParameterType>(Word());
    if (parameter.type == ParameterType::kString) {
      parameter.text = Text();
    } else {
      parameter.number = Word();
    }
  }
  return parameters;
}

std::vector<std::string> MessageReader::ReadTexts() {
  std::vector<std::string> texts(Count(2));
  for (std::string& text : texts) text = Text();
  return texts;
}

std::vector<TensorColumn> MessageReader::ReadColumns(int64_t request_count) {
  std::vector<TensorColumn> columns;
  const int64_t count = Count(3);
  columns.reserve(count);
  for (int64_t i = 0; i < count; ++i) columns.push_back(ReadColumn(request_count));
  return columns;
}

}  // namespace pytriton
