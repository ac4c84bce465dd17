// The trace of a request that a worker sends: it carries the worker's trace context to the model, and reports to the
// worker when the request was queued and computed. Triton's own traces only begin at its front ends, and a child must
// not outlive its parent, as an abandoned request may.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "triton/api.h"

namespace pytriton {

class ServiceChannel;

// Creates the trace for the request of this number; null if there is no context, or the server has no traces. Triton
// owns the trace from TRITONSERVER_ServerInferAsync on.
TRITONSERVER_InferenceTrace* NewCallTrace(const std::shared_ptr<ServiceChannel>& channel, int64_t number,
                                          const std::string& context);

}  // namespace pytriton
