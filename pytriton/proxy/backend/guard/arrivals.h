// The arrival times of requests at Triton's core, for the backend: its API does not report how long a request was
// queued.
#pragma once

#include "triton/api.h"

namespace pytriton::guard {

// Without a lock, and for a limited number of requests: if two have the same slot, the later one is kept.
void NoteArrival(const TRITONSERVER_InferenceRequest* request);
void ForgetArrival(const TRITONSERVER_InferenceRequest* request);

}  // namespace pytriton::guard
