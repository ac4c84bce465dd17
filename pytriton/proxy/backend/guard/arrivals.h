// When requests came to Triton's core. The backend asks for it: its API does not tell how long a request was queued.
#pragma once

#include "triton/api.h"

namespace pytriton::guard {

// Without a lock, and for a limited number of requests: of two that fall on the same place, the later one is known.
void NoteArrival(const TRITONSERVER_InferenceRequest* request);
void ForgetArrival(const TRITONSERVER_InferenceRequest* request);

}  // namespace pytriton::guard
