// Releases requests, and reports their outcome to Triton's statistics.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "triton/api.h"
#include "triton/error.h"

namespace pytriton {

// When the stages of a batch began: CLOCK_MONOTONIC in nanoseconds.
struct Timing {
  uint64_t exec_start = 0;
  uint64_t sent = 0;  // to the worker
  uint64_t compute_start = 0;
  uint64_t compute_end = 0;
};

// The outcome of a request. A rescheduled one belongs to the server again.
enum class Outcome : char { kFailed, kSucceeded, kRescheduled };

class RequestStatistics {
 public:
  explicit RequestStatistics(TRITONBACKEND_ModelInstance* instance) : instance_(instance) {}

  // Reports a request whose response was sent, and releases it.
  void Close(TRITONBACKEND_Request* request, bool succeeded, const Timing& timing, uint64_t exec_end) const {
    LogIfError(TRITONBACKEND_ModelInstanceReportStatistics(instance_, request, succeeded, timing.exec_start,
                                                           timing.compute_start, timing.compute_end, exec_end),
               "cannot report a request's statistics");
    LogIfError(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL), "cannot release a request");
  }

  // Reports a batch in which at least one request succeeded.
  void CloseBatch(int64_t rows, const Timing& timing, uint64_t exec_end) const {
    LogIfError(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance_, rows, timing.exec_start,
                                                                timing.compute_start, timing.compute_end, exec_end),
               "cannot report a batch's statistics");
  }

 private:
  TRITONBACKEND_ModelInstance* const instance_;
};

}  // namespace pytriton
