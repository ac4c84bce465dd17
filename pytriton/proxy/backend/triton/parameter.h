// Conversion of Triton's request and response parameters.
#pragma once

#include <cstring>

#include "triton/api.h"
#include "wire/encoding.h"

namespace pytriton {

inline Parameter ToParameter(const char* key, TRITONSERVER_ParameterType type, const void* value) {
  Parameter parameter;
  parameter.key = key;
  switch (type) {
    case TRITONSERVER_PARAMETER_INT:
      parameter.type = ParameterType::kInt;
      parameter.number = *static_cast<const int64_t*>(value);
      break;
    case TRITONSERVER_PARAMETER_BOOL:
      parameter.type = ParameterType::kBool;
      parameter.number = *static_cast<const bool*>(value) ? 1 : 0;
      break;
    case TRITONSERVER_PARAMETER_DOUBLE:
      parameter.type = ParameterType::kDouble;
      std::memcpy(&parameter.number, value, sizeof(parameter.number));
      break;
    default:
      parameter.text = static_cast<const char*>(value);
  }
  return parameter;
}

}  // namespace pytriton
