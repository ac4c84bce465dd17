#include "model_instance/batch_builder.h"

#include <algorithm>

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

}  // namespace

bool BatchBuilder::Add(TRITONBACKEND_Request* request) {
  const int64_t rows = RowsOf(request);
  Shapes shapes = has_variable_inputs_ ? ShapesOf(request) : Shapes();
  if (requests_.empty()) {
    shapes_ = std::move(shapes);
  } else if (rows_ + rows > max_rows_ || shapes != shapes_) {
    return false;
  }
  requests_.push_back(request);
  rows_ += rows;
  return true;
}

std::vector<TRITONBACKEND_Request*> BatchBuilder::Take() {
  rows_ = 0;
  return std::exchange(requests_, {});
}

int64_t BatchBuilder::RowsOf(TRITONBACKEND_Request* request) {
  if (InputCount(request) == 0) return 1;
  const Properties first = PropertiesOf(request, 0);
  return first.rank > 0 ? first.shape[0] : 1;
}

BatchBuilder::Shapes BatchBuilder::ShapesOf(TRITONBACKEND_Request* request) {
  Shapes shapes(InputCount(request));
  for (uint32_t i = 0; i < shapes.size(); ++i) {
    const Properties input = PropertiesOf(request, i);
    shapes[i] = {input.name, {input.shape + std::min<uint32_t>(1, input.rank), input.shape + input.rank}};
  }
  std::sort(shapes.begin(), shapes.end());
  return shapes;
}

}  // namespace pytriton
