// Sizes of Triton's datatypes and shapes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "triton/api.h"

namespace pytriton {

// Bytes per element; 0 for BYTES, whose elements vary, and for unknown datatypes.
inline int64_t ItemSize(int64_t datatype) {
  switch (datatype) {
    case TRITONSERVER_TYPE_BOOL:
    case TRITONSERVER_TYPE_UINT8:
    case TRITONSERVER_TYPE_INT8:
      return 1;
    case TRITONSERVER_TYPE_UINT16:
    case TRITONSERVER_TYPE_INT16:
    case TRITONSERVER_TYPE_FP16:
    case TRITONSERVER_TYPE_BF16:
      return 2;
    case TRITONSERVER_TYPE_UINT32:
    case TRITONSERVER_TYPE_INT32:
    case TRITONSERVER_TYPE_FP32:
      return 4;
    case TRITONSERVER_TYPE_UINT64:
    case TRITONSERVER_TYPE_INT64:
    case TRITONSERVER_TYPE_FP64:
      return 8;
    default:
      return 0;
  }
}

// The largest number of elements whose bytes can still be counted.
constexpr int64_t kMaxElements = int64_t{1} << 59;

// The number of elements, or -1 for an impossible shape: a dimension is negative, or there are too many elements.
// Shapes come from clients and workers, so they are not trusted.
inline int64_t ElementCount(const int64_t* shape, size_t rank) {
  int64_t count = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] < 0 || __builtin_mul_overflow(count, shape[i], &count) || count > kMaxElements) return -1;
  }
  return count;
}

}  // namespace pytriton
