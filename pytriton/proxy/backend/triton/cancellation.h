// Cancellation of requests, by the client or by a timeout.
#pragma once

#include <cstdint>
#include <string>

#include "triton/api.h"

namespace pytriton {

enum class Cancellation { kNone, kByClient, kByTimeout };

// Whether the client has cancelled the request or disconnected.
bool IsCancelled(TRITONBACKEND_Request* request);

// Queries Triton. The timeout is the request's, counted from `exec_start_ns` (CLOCK_MONOTONIC).
Cancellation CancellationOf(TRITONBACKEND_Request* request, uint64_t exec_start_ns);

// The message for the client.
std::string Reason(Cancellation cancellation);
TRITONSERVER_Error_Code Code(Cancellation cancellation);

}  // namespace pytriton
