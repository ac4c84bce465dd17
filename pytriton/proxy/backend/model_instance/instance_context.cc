#include "model_instance/instance_context.h"

#include "triton/error.h"

namespace pytriton {

void InstanceContext::Reject(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                             const std::string& message) const {
  responder.RespondError(request, code, message);
  statistics.Close(request, false, Timing(), 0);
}

void InstanceContext::Report(const Failure& failure, size_t request_count) const {
  if (!failure.detail.empty()) Log(TRITONSERVER_LOG_ERROR, failure.detail);
  metrics->CountError(failure.error, request_count);
}

void InstanceContext::Report(const std::vector<RequestFailure>& failures, size_t request_count) const {
  for (const RequestFailure& each : failures) Report(each.failure, each.request < 0 ? request_count : 1);
}

}  // namespace pytriton
