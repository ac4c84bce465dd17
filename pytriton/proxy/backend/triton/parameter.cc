#include "triton/parameter.h"

#include <cstring>

#include "triton/error.h"

namespace pytriton {

namespace {

double DoubleOf(const Parameter& parameter) {
  double value;
  std::memcpy(&value, &parameter.number, sizeof(value));
  return value;
}

}  // namespace

Parameter ToParameter(const char* key, TRITONSERVER_ParameterType type, const void* value) {
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

void SetParameter(TRITONSERVER_InferenceRequest* request, const Parameter& parameter) {
  const char* key = parameter.key.c_str();
  switch (parameter.type) {
    case ParameterType::kString:
      return Check(TRITONSERVER_InferenceRequestSetStringParameter(request, key, parameter.text.c_str()));
    case ParameterType::kInt:
      return Check(TRITONSERVER_InferenceRequestSetIntParameter(request, key, parameter.number));
    case ParameterType::kBool:
      return Check(TRITONSERVER_InferenceRequestSetBoolParameter(request, key, parameter.number != 0));
    case ParameterType::kDouble:
      if (TRITONSERVER_InferenceRequestSetDoubleParameter == nullptr) {
        throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED, "parameter '" + parameter.key +
                                                              "' is a float, which this server does not know: it is "
                                                              "older than 24.04");
      }
      return Check(TRITONSERVER_InferenceRequestSetDoubleParameter(request, key, DoubleOf(parameter)));
  }
  throw ProtocolError("the worker sent a parameter of an unknown type");
}

void SetParameter(TRITONBACKEND_Response* response, const Parameter& parameter) {
  const char* key = parameter.key.c_str();
  switch (parameter.type) {
    case ParameterType::kString:
      return Check(TRITONBACKEND_ResponseSetStringParameter(response, key, parameter.text.c_str()));
    case ParameterType::kInt:
      return Check(TRITONBACKEND_ResponseSetIntParameter(response, key, parameter.number));
    case ParameterType::kBool:
      return Check(TRITONBACKEND_ResponseSetBoolParameter(response, key, parameter.number != 0));
    case ParameterType::kDouble:
      if (TRITONBACKEND_ResponseSetDoubleParameter == nullptr) {
        throw TritonError(TRITONSERVER_ERROR_UNSUPPORTED,
                          "response parameter '" + parameter.key +
                              "' is a floating-point number, which this server cannot send: send it as a string");
      }
      return Check(TRITONBACKEND_ResponseSetDoubleParameter(response, key, DoubleOf(parameter)));
  }
  throw ProtocolError("the worker sent a parameter of an unknown type");
}

}  // namespace pytriton
