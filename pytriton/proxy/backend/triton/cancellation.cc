#include "triton/cancellation.h"

#include "base/clock.h"
#include "triton/error.h"
#include "triton/request_statistics.h"

namespace pytriton {

bool IsCancelled(TRITONBACKEND_Request* request) {
  bool is_cancelled = false;
  if (TRITONBACKEND_RequestIsCancelled != nullptr) {
    LogIfError(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled), "cannot query whether a request is cancelled");
  }
  return is_cancelled;
}

Cancellation CancellationOf(TRITONBACKEND_Request* request, uint64_t exec_start_ns) {
  if (IsCancelled(request)) return Cancellation::kByClient;
  if (TRITONSERVER_InferenceRequestTimeoutMicroseconds != nullptr) {
    uint64_t timeout_us = 0;
    LogIfError(TRITONSERVER_InferenceRequestTimeoutMicroseconds(
                   reinterpret_cast<TRITONSERVER_InferenceRequest*>(request), &timeout_us),
               "cannot query a request's timeout");
    if (timeout_us != 0 && (MonotonicNs() - exec_start_ns) / 1000 > timeout_us) return Cancellation::kByTimeout;
  }
  return Cancellation::kNone;
}

std::string Reason(Cancellation cancellation) {
  return cancellation == Cancellation::kByTimeout ? "the request's timeout has passed" : "the request was cancelled";
}

TRITONSERVER_Error_Code Code(Cancellation cancellation) {
  return cancellation == Cancellation::kByTimeout ? TRITONSERVER_ERROR_UNAVAILABLE : TRITONSERVER_ERROR_CANCELLED;
}

}  // namespace pytriton
