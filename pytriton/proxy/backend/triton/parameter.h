// Conversion of Triton's request and response parameters.
#pragma once

#include "triton/api.h"
#include "wire/encoding.h"

namespace pytriton {

Parameter ToParameter(const char* key, TRITONSERVER_ParameterType type, const void* value);

// Sets a parameter of a request or of a response. Throws TritonError, or ProtocolError if its type is unknown.
void SetParameter(TRITONSERVER_InferenceRequest* request, const Parameter& parameter);
void SetParameter(TRITONBACKEND_Response* response, const Parameter& parameter);

}  // namespace pytriton
