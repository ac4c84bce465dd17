#include "services/call_trace.h"

#include "services/service_channel.h"
#include "triton/error.h"

namespace pytriton {

namespace {

struct TracedCall {
  void SendActivity(int64_t activity, int64_t timestamp_ns) const {
    const std::shared_ptr<ServiceChannel> living = channel.lock();
    if (living != nullptr) living->SendActivity(number, activity, timestamp_ns);
  }

  std::weak_ptr<ServiceChannel> channel;  // Triton keeps the trace of a request whose inputs it refuses
  int64_t number;
};

// Whether it is the trace of a step of an ensemble, which may outlive that of the request.
bool IsChild(TRITONSERVER_InferenceTrace* trace) {
  uint64_t parent = 0;
  LogIfError(TRITONSERVER_InferenceTraceParentId(trace, &parent), "cannot read a trace");
  return parent != 0;
}

void OnActivity(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t timestamp_ns,
                void* userp) {
  if (activity > TRITONSERVER_TRACE_REQUEST_END || IsChild(trace)) return;
  static_cast<TracedCall*>(userp)->SendActivity(activity, static_cast<int64_t>(timestamp_ns));
}

void OnRelease(TRITONSERVER_InferenceTrace* trace, void* userp) {
  if (!IsChild(trace)) {
    const std::unique_ptr<TracedCall> call(static_cast<TracedCall*>(userp));
    call->SendActivity(kReleased, 0);
  }
  LogIfError(TRITONSERVER_InferenceTraceDelete(trace), "cannot delete a trace");
}

}  // namespace

TRITONSERVER_InferenceTrace* NewCallTrace(const std::shared_ptr<ServiceChannel>& channel, int64_t number,
                                          const std::string& context) {
  const bool may_be_json = !context.empty() && context.front() == '{';  // otherwise, Triton could not read it
  if (!may_be_json || TRITONSERVER_InferenceTraceSetContext == nullptr) return nullptr;
  auto call = std::make_unique<TracedCall>(TracedCall{channel, number});
  TRITONSERVER_InferenceTrace* trace = nullptr;
  TRITONSERVER_Error* error =
      TRITONSERVER_InferenceTraceNew(&trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, OnActivity, OnRelease, call.get());
  if (error != nullptr) {  // a server that was built without traces
    TRITONSERVER_ErrorDelete(error);
    return nullptr;
  }
  call.release();
  LogIfError(TRITONSERVER_InferenceTraceSetContext(trace, context.c_str()), "cannot set the context of a trace");
  return trace;
}

}  // namespace pytriton
