#include "model_instance/batch_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "triton/error.h"

namespace pytriton {

namespace {

struct Properties {
  const char* name = nullptr;
  const int64_t* shape = nullptr;
  uint32_t rank = 0;
};

Properties PropertiesOf(TRITONBACKEND_Request* request, uint32_t index) {
  TRITONBACKEND_Input* input = nullptr;
  Check(TRITONBACKEND_RequestInputByIndex(request, index, &input));
  Properties properties;
  TRITONSERVER_DataType datatype;
  uint64_t size = 0;
  uint32_t buffer_count = 0;
  Check(TRITONBACKEND_InputProperties(input, &properties.name, &datatype, &properties.shape, &properties.rank, &size,
                                      &buffer_count));
  return properties;
}

uint32_t InputCount(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  Check(TRITONBACKEND_RequestInputCount(request, &count));
  return count;
}

// Whether an input has this name, and these dimensions beyond the first, along which a batch is stacked.
bool IsAlike(const Properties& input, const Properties& other) {
  return input.rank == other.rank && std::strcmp(input.name, other.name) == 0 &&
         (input.rank == 0 || std::equal(input.shape + 1, input.shape + input.rank, other.shape + 1));
}

bool HaveSameInputs(TRITONBACKEND_Request* request, TRITONBACKEND_Request* other) {
  const uint32_t count = InputCount(request);
  if (InputCount(other) != count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const Properties input = PropertiesOf(request, i);
    bool is_found = false;
    for (uint32_t j = 0; j < count && !is_found; ++j) {
      is_found = IsAlike(input, PropertiesOf(other, (i + j) % count));  // clients mostly keep the same order
    }
    if (!is_found) return false;
  }
  return true;
}

}  // namespace

bool BatchBuilder::Add(TRITONBACKEND_Request* request) {
  const int64_t rows = RowsOf(request);
  if (!requests_.empty()) {
    if (rows_ + rows > max_rows_) return false;
    if (has_variable_inputs_ && !HaveSameInputs(request, requests_.front())) return false;
  }
  requests_.push_back(request);
  rows_ += rows;
  return true;
}

std::vector<TRITONBACKEND_Request*> BatchBuilder::Take() {
  rows_ = 0;
  last_size_ = requests_.size();
  has_expected_more_ = false;
  return std::exchange(requests_, {});
}

int64_t BatchBuilder::RowsOf(TRITONBACKEND_Request* request) const {
  if (InputCount(request) == 0) return 1;
  const Properties first = PropertiesOf(request, 0);
  // Triton removes the first dimension of a request of no rows, so that another one is first.
  return first.rank == 0 ? 1 : std::clamp<int64_t>(first.shape[0], 1, max_rows_);
}

}  // namespace pytriton
