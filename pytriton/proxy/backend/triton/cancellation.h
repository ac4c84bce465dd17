// Whether anybody still wants what a request is to bring.
#pragma once

#include <cstdint>
#include <string>

#include "triton/api.h"

namespace pytriton {

enum class Cancellation { kNone, kByClient, kByTimeout };

// Whether its client has cancelled it or is gone.
bool IsCancelled(TRITONBACKEND_Request* request);

// Asks Triton. The timeout is the request's own, counted from `exec_start_ns` (CLOCK_MONOTONIC).
Cancellation CancellationOf(TRITONBACKEND_Request* request, uint64_t exec_start_ns);

// For the client.
std::string Reason(Cancellation cancellation);
TRITONSERVER_Error_Code Code(Cancellation cancellation);

}  // namespace pytriton
