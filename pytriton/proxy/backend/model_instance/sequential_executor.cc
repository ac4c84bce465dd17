#include "model_instance/sequential_executor.h"

#include <algorithm>
#include <exception>
#include <memory>

#include "base/clock.h"
#include "model_instance/held_responses.h"
#include "model_instance/result_responder.h"
#include "services/service_channel.h"
#include "transport/adaptive_spin.h"
#include "transport/arena.h"
#include "transport/channel.h"
#include "transport/connection.h"
#include "triton/cancellation.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr int64_t kMaxHeldBytes = 65536;  // of a batch that takes little time to copy

}  // namespace

void SequentialExecutor::Execute(NotificationKind kind, ConnectedWorker* worker, TRITONBACKEND_Request** requests,
                                 uint32_t request_count) const {
  Timing timing;
  timing.exec_start = MonotonicNs();
  // A failure below resets it before the batch is done.
  const std::shared_ptr<Connection> connection = worker->connection;
  Batch batch(connection->model(), context_.input_ranks, requests, request_count);
  const HeldResponses held(batch, context_.responder.cached_output());
  for (const Rejection& rejection : batch.rejections()) {
    context_.Reject(rejection.request, rejection.code, context_.Describe(rejection.reason));
  }
  if (batch.requests().empty()) return context_.warmup->Done(false);
  const BusyWorker busy_worker;
  InstanceMetrics* metrics = kind == NotificationKind::kBatch ? context_.metrics.get() : nullptr;
  if (metrics != nullptr) metrics->Begin(batch.requests(), batch.total_rows(), timing.exec_start);
  const std::vector<Outcome> outcomes = Infer(kind, worker, &batch, &timing);
  Close(batch, outcomes, timing, metrics);
  context_.warmup->Done(std::find(outcomes.begin(), outcomes.end(), Outcome::kFailed) == outcomes.end());
}

std::vector<Outcome> SequentialExecutor::Infer(NotificationKind kind, ConnectedWorker* worker, Batch* batch,
                                               Timing* timing) const {
  const ActiveCallChain call_chain(worker->service, 0, batch->call_chain());
  try {
    Connection* const connection = worker->connection.get();
    const Notification notification = RoundTrip(kind, *worker, batch, timing);
    const PeerBlock message(&connection->worker_arena(), notification.offset, notification.size);
    MessageReader reader(message.data(), message.size());
    const ResultMessage result = DecodeResult(&reader);
    timing->compute_start = result.compute_start_ns;
    timing->compute_end = result.compute_end_ns;
    context_.hold->Record(static_cast<int64_t>(result.compute_end_ns - result.compute_start_ns));
    context_.Report(result.failures, batch->requests().size());
    const char* const data = message.data() + reader.data_offset();
    return ResultResponder(*batch, connection, result, data, context_.responder).Respond();
  } catch (const ChannelError& error) {
    worker->connection.reset();
    return Fail(*batch, TRITONSERVER_ERROR_UNAVAILABLE, error.what());
  } catch (const ProtocolError& error) {
    worker->connection.reset();
    return Fail(*batch, TRITONSERVER_ERROR_INTERNAL, error.what());
  } catch (const std::exception& error) {
    return Fail(*batch, TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

Notification SequentialExecutor::RoundTrip(NotificationKind kind, const ConnectedWorker& worker, Batch* batch,
                                           Timing* timing) const {
  Connection* const connection = worker.connection.get();
  int64_t size = 0;
  const Block block = batch->Write(connection->arena().get(), connection->device_arena(), &size);
  uint64_t left = 0;  // requests whose client has disconnected
  uint64_t late = 0;  // and those whose timeout has passed
  timing->sent = MonotonicNs();
  Waiting waiting;
  RequestHold* const hold = context_.hold.get();
  if (size > kMaxHeldBytes) hold->End();
  waiting.poll = [&] {
    worker.service->Poll();
    hold->EndIfOver();
  };
  waiting.end_poll = [&] { worker.service->EndPolling(); };
  waiting.first_check_ns = hold->EndIfOver();
  waiting.check = [&] {
    hold->EndIfOver();
    left = late = 0;
    for (size_t i = 0; i < batch->requests().size(); ++i) {
      const Cancellation cancellation = CancellationOf(batch->requests()[i], timing->exec_start);
      if (cancellation == Cancellation::kNone) continue;
      ++(cancellation == Cancellation::kByTimeout ? late : left);
      batch->Cancel(i);
    }
  };
  const Notification notification = connection->RoundTrip(kind, batch->requests().size(), block.offset, size, waiting);
  if (PYTRITON_BatchHasResults != nullptr) PYTRITON_BatchHasResults();
  context_.metrics->CountCancelled(Cancellation::kByClient, left);
  context_.metrics->CountCancelled(Cancellation::kByTimeout, late);
  return notification;
}

std::vector<Outcome> SequentialExecutor::Fail(const Batch& batch, TRITONSERVER_Error_Code code,
                                              const std::string& reason) const {
  const std::string message = context_.Describe(reason);
  Log(TRITONSERVER_LOG_ERROR, message);
  for (TRITONBACKEND_Request* request : batch.requests()) context_.responder.RespondError(request, code, message);
  return std::vector<Outcome>(batch.requests().size(), Outcome::kFailed);
}

void SequentialExecutor::Close(const Batch& batch, const std::vector<Outcome>& outcomes, const Timing& timing,
                               InstanceMetrics* metrics) const {
  const uint64_t exec_end = MonotonicNs();
  if (metrics != nullptr) metrics->Ran(timing, batch.requests().size());
  bool any = false;
  for (size_t i = 0; i < batch.requests().size(); ++i) {
    any = any || outcomes[i] != Outcome::kFailed;
    if (outcomes[i] == Outcome::kRescheduled) {
      if (metrics != nullptr) metrics->Leave();
      continue;
    }
    if (metrics != nullptr) metrics->End(batch.requests()[i], timing.exec_start, exec_end);
    context_.statistics.Close(batch.requests()[i], outcomes[i] == Outcome::kSucceeded, timing, exec_end);
  }
  if (any) context_.statistics.CloseBatch(batch.total_rows(), timing, exec_end);
}

}  // namespace pytriton
