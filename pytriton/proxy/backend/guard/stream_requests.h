// The requests of gRPC streams, as the front end passes them to the core.
#pragma once

#include <cstdint>

#include "triton/api.h"

namespace pytriton::guard {

// Notes the properties of the model for which the calling thread is reading a request.
void NoteTransactionProperties(uint32_t flags);

// Passes a request to the core.
TRITONSERVER_Error* InferAsync(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request,
                               TRITONSERVER_InferenceTrace* trace);

}  // namespace pytriton::guard
