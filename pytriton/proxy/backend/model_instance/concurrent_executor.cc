#include "model_instance/concurrent_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/workarounds.h"
#include "model_instance/held_responses.h"
#include "model_instance/responses.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr uint64_t kPollEveryNs = 50'000'000;

}  // namespace

ConcurrentExecutor::ConcurrentExecutor(std::shared_ptr<Connection> connection, TRITONBACKEND_ModelInstance* instance,
                                       std::string model, std::string cached_output, WarmupGuard* warmup,
                                       std::shared_ptr<ServiceChannel> service,
                                       const std::vector<uint32_t>& input_ranks, InstanceMetrics* metrics)
    : connection_(std::move(connection)),
      statistics_(instance),
      model_(std::move(model)),
      cached_output_(std::move(cached_output)),
      warmup_(warmup),
      service_(std::move(service)),
      input_ranks_(input_ranks),
      metrics_(metrics) {
  listener_ = std::thread([this] { Listen(); });
}

ConcurrentExecutor::~ConcurrentExecutor() {
  connection_->Close();
  listener_.join();
}

bool ConcurrentExecutor::alive() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !broken_;
}

size_t ConcurrentExecutor::in_flight() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_flight_.size();
}

bool ConcurrentExecutor::Submit(NotificationKind kind, TRITONBACKEND_Request** requests, uint32_t request_count) {
  if (!alive()) return false;
  auto batch_in_flight =
      std::make_unique<InFlightBatch>(Batch(connection_->model(), input_ranks_, requests, request_count));
  batch_in_flight->timing.exec_start = MonotonicNs();
  for (const Rejection& rejection : batch_in_flight->batch.rejections()) {
    const HeldResponses held(batch_in_flight->batch, cached_output_);
    Refuse(rejection.request, rejection.code, "model '" + model_ + "': " + rejection.reason);
    statistics_.Close(rejection.request, false, Timing(), 0);
  }
  const size_t count = batch_in_flight->batch.requests().size();
  if (count == 0) return true;
  batch_in_flight->is_warmup = kind == NotificationKind::kWarmup;
  if (!batch_in_flight->is_warmup) {
    metrics_->Begin(batch_in_flight->batch.requests(), batch_in_flight->batch.total_rows(),
                    batch_in_flight->timing.exec_start);
  }
  batch_in_flight->open = count;
  batch_in_flight->closed.resize(count);
  batch_in_flight->ended.resize(count);
  batch_in_flight->leaving.resize(count);
  Block block;
  int64_t size = 0;
  try {
    const std::lock_guard<std::mutex> memory(memory_mutex_);
    block = batch_in_flight->batch.Write(connection_->arena().get(), connection_->device_arena(), &size);
  } catch (const std::exception& error) {
    for (size_t i = 0; i < count; ++i) Fail(batch_in_flight.get(), i, TRITONSERVER_ERROR_INTERNAL, error.what());
    return true;
  }
  batch_in_flight->timing.sent = MonotonicNs();
  const int64_t sequence = connection_->NextSequence();
  if (!batch_in_flight->batch.call_chain().empty()) service_->Began(sequence, batch_in_flight->batch.call_chain());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_) in_flight_[sequence] = std::move(batch_in_flight);
  }
  if (batch_in_flight != nullptr) {
    for (size_t i = 0; i < count; ++i)
      Fail(batch_in_flight.get(), i, TRITONSERVER_ERROR_UNAVAILABLE, "the worker has gone");
    return true;
  }
  // Without the lock: this may block until the worker receives, and the worker may wait for its responses to be
  // received.
  try {
    connection_->Send(kind, sequence, block.offset, size);
  } catch (const ChannelError&) {
    // The receiving thread notices, and fails all requests in flight.
  }
  const bool deferred = connection_->model().mode == ExecutionMode::kDeferred;
  // A busy worker takes batches late. What arrives meanwhile had better wait in Triton's queue, and become one.
  if (!deferred && in_flight() > 1) {
    while (alive() && !connection_->AwaitTaken()) continue;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto limit = static_cast<size_t>(connection_->model().max_in_flight);
  room_.wait(lock, [&] {
    if (broken_) return true;
    return in_flight_.size() < limit && (!deferred || returned_ >= sequence || in_flight_.count(sequence) == 0);
  });
  return true;
}

void ConcurrentExecutor::Listen() {
  uint64_t looked = 0;
  try {
    while (true) {
      Notification notification;
      if (connection_->Receive(&notification)) Receive(notification);
      const uint64_t now = MonotonicNs();
      if (now - looked < kPollEveryNs) continue;
      looked = now;
      PollCancelled();
    }
  } catch (const ChannelError& error) {
    Break(error.what(), TRITONSERVER_ERROR_UNAVAILABLE);
  } catch (const std::exception& error) {
    Break(error.what(), TRITONSERVER_ERROR_INTERNAL);
  }
}

void ConcurrentExecutor::Receive(const Notification& notification) {
  if (notification.kind == static_cast<int64_t>(NotificationKind::kReturned)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    returned_ = std::max(returned_, notification.sequence);
    room_.notify_one();
    return;
  }
  const bool is_result = notification.kind == static_cast<int64_t>(NotificationKind::kResult);
  if (!is_result && notification.kind != static_cast<int64_t>(NotificationKind::kResponses))
    throw ProtocolError("the worker sent a response out of turn");
  const char* message = connection_->worker_arena().At(notification.offset, notification.size);
  MessageReader reader(message, notification.size);
  if (is_result) {
    const ResultMessage result = DecodeResult(&reader);
    Deliver(notification.sequence, result, message + reader.data_offset());
  } else {
    const ResponsesMessage responses = DecodeResponses(&reader);
    for (const ResponseEntry& response : responses.responses) Deliver(response, message + reader.data_offset());
  }
  connection_->worker_arena().Release(notification.offset);
}

ConcurrentExecutor::InFlightBatch* ConcurrentExecutor::Find(int64_t sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = in_flight_.find(sequence);
  return found == in_flight_.end() ? nullptr : found->second.get();
}

void ConcurrentExecutor::Deliver(int64_t sequence, const ResultMessage& result, const char* data) {
  InFlightBatch* const batch_in_flight = Find(sequence);
  if (batch_in_flight == nullptr || batch_in_flight->open != batch_in_flight->ended.size() ||
      connection_->model().decoupled) {
    throw ProtocolError("the worker sent a result out of turn");
  }
  const Batch& batch = batch_in_flight->batch;
  const HeldResponses held(batch, cached_output_);
  batch_in_flight->timing.compute_start = result.compute_start_ns;
  batch_in_flight->timing.compute_end = result.compute_end_ns;
  ReportFailures(result.failures, batch.requests().size(), *metrics_);
  // The final responses to cancelled requests are sent by the poll for them.
  std::vector<bool> left_out = batch_in_flight->closed;
  for (size_t i = 0; i < left_out.size(); ++i) left_out[i] = left_out[i] || IsCancelled(batch.requests()[i]);
  for (const RequestFailure& failure : result.failures) {
    if (!failure.failure.is_reschedule()) warmup_->Done(false);  // before Triton learns of it
  }
  const std::vector<Outcome> outcomes = Respond(batch, connection_.get(), result, data, cached_output_, left_out);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (left_out[i]) continue;
    if (outcomes[i] == Outcome::kRescheduled) {
      Leave(batch_in_flight, i);
    } else {
      Close(batch_in_flight, i, outcomes[i] == Outcome::kSucceeded);
    }
  }
  batch_in_flight->ended.assign(outcomes.size(), true);
  batch_in_flight->open = 0;
  Complete(sequence, batch_in_flight);
}

void ConcurrentExecutor::Deliver(const ResponseEntry& response, const char* data) {
  InFlightBatch* const batch_in_flight = Find(response.sequence);
  const auto request = static_cast<size_t>(response.request);
  if (batch_in_flight == nullptr || response.request < 0 || request >= batch_in_flight->closed.size() ||
      batch_in_flight->ended[request]) {
    throw ProtocolError("the worker responded to a request that it does not have");
  }
  if (response.response && !response.final && !connection_->model().decoupled) {
    throw ProtocolError("the worker sent several responses, which only decoupled models may do");
  }
  const HeldResponses held(batch_in_flight->batch, cached_output_);
  batch_in_flight->timing.compute_start = response.compute_start_ns;
  batch_in_flight->timing.compute_end = response.compute_end_ns;
  if (!batch_in_flight->closed[request]) {  // otherwise the client has gone, or got an error
    if (IsCancelled(batch_in_flight->batch.requests()[request])) {
      // Its final response is sent by the poll for such requests.
    } else if (response.failure && response.failure->is_reschedule()) {
      Reschedule(batch_in_flight, request, response.final);
    } else if (response.failure) {
      if (!response.failure->detail.empty()) Log(TRITONSERVER_LOG_ERROR, response.failure->detail);
      metrics_->CountError(response.failure->error, 1);
      Refuse(batch_in_flight->batch.requests()[request], static_cast<TRITONSERVER_Error_Code>(response.failure->code),
             response.failure->message);
      Close(batch_in_flight, request, false);
    } else if (response.response) {
      const bool responded = Respond(batch_in_flight->batch, connection_->model(), response, data, cached_output_);
      if (response.final || !responded) Close(batch_in_flight, request, responded);
    } else if (response.final && connection_->model().decoupled) {
      RespondFinal(batch_in_flight->batch.requests()[request]);
      Close(batch_in_flight, request, true);
    } else if (response.final) {
      Fail(batch_in_flight, request, TRITONSERVER_ERROR_INTERNAL, "the request ended without a response");
    }
    if (batch_in_flight->closed[request] && !response.final) {
      const std::lock_guard<std::mutex> memory(memory_mutex_);
      batch_in_flight->batch.Cancel(request);
    }
  }
  if (!response.final) return;
  batch_in_flight->ended[request] = true;
  --batch_in_flight->open;
  Complete(response.sequence, batch_in_flight);
}

// Completes a batch once the worker has ended it, and all its requests were returned to Triton.
void ConcurrentExecutor::Complete(int64_t sequence, InFlightBatch* batch_in_flight) {
  if (batch_in_flight->open > 0 ||
      std::find(batch_in_flight->closed.begin(), batch_in_flight->closed.end(), false) != batch_in_flight->closed.end())
    return;
  if (!batch_in_flight->any_failed) warmup_->Done(true);
  if (batch_in_flight->any_succeeded)
    statistics_.CloseBatch(batch_in_flight->batch.total_rows(), batch_in_flight->timing, MonotonicNs());
  if (!batch_in_flight->batch.call_chain().empty()) service_->Ended(sequence);
  const std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.erase(sequence);
  room_.notify_one();
}

// Responds to the requests of clients that have gone, and sets their cancel flags; the worker ends them later.
void ConcurrentExecutor::PollCancelled() {
  std::vector<std::pair<int64_t, InFlightBatch*>> in_flight;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_flight.reserve(in_flight_.size());
    for (const auto& [sequence, batch_in_flight] : in_flight_) in_flight.emplace_back(sequence, batch_in_flight.get());
  }
  static const bool is_late = NeedsWorkaround("late-responses");
  for (const auto& [sequence, batch_in_flight] : in_flight) {
    bool any = false;
    for (size_t i = 0; i < batch_in_flight->closed.size(); ++i) {
      if (batch_in_flight->closed[i]) continue;
      const Cancellation cancellation =
          CancellationOf(batch_in_flight->batch.requests()[i], batch_in_flight->timing.exec_start);
      if (cancellation == Cancellation::kNone) continue;
      if (cancellation == Cancellation::kByClient && is_late && !batch_in_flight->leaving[i]) {
        // Workaround for Triton (late-responses): not at once, since a response sent while Triton handles a client's
        // departure may crash the server (https://github.com/triton-inference-server/server/pull/7840).
        batch_in_flight->leaving[i] = true;
      } else {
        const HeldResponses held(batch_in_flight->batch, cached_output_);
        Refuse(batch_in_flight->batch.requests()[i], Code(cancellation),
               "model '" + model_ + "': " + Reason(cancellation));
        metrics_->CountCancelled(cancellation);
        Close(batch_in_flight, i, false);
        any = true;
      }
      const std::lock_guard<std::mutex> memory(memory_mutex_);
      batch_in_flight->batch.Cancel(i);
    }
    if (any) Complete(sequence, batch_in_flight);
  }
}

void ConcurrentExecutor::Reschedule(InFlightBatch* batch_in_flight, size_t request, bool final) {
  if (!final) throw ProtocolError("the worker sent more for a request that it rescheduled");
  const Outcome outcome = pytriton::Reschedule(batch_in_flight->batch.requests()[request], cached_output_);
  if (outcome == Outcome::kFailed) return Close(batch_in_flight, request, false);
  Leave(batch_in_flight, request);
}

void ConcurrentExecutor::Leave(InFlightBatch* batch_in_flight, size_t request) {
  if (!batch_in_flight->is_warmup) metrics_->Leave();
  batch_in_flight->closed[request] = true;
  batch_in_flight->any_succeeded = true;
}

void ConcurrentExecutor::Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                                const std::string& message) {
  warmup_->Done(false);  // before Triton learns of it
  RespondError(request, code, message, cached_output_);
}

void ConcurrentExecutor::Close(InFlightBatch* batch_in_flight, size_t request, bool succeeded) {
  batch_in_flight->closed[request] = true;
  (succeeded ? batch_in_flight->any_succeeded : batch_in_flight->any_failed) = true;
  const uint64_t now = MonotonicNs();
  if (!batch_in_flight->is_warmup) {
    metrics_->Ran(batch_in_flight->timing, 1);
    metrics_->End(batch_in_flight->batch.requests()[request], batch_in_flight->timing.exec_start, now);
  }
  statistics_.Close(batch_in_flight->batch.requests()[request], succeeded, batch_in_flight->timing, now);
}

void ConcurrentExecutor::Fail(InFlightBatch* batch_in_flight, size_t request, TRITONSERVER_Error_Code code,
                              const std::string& reason) {
  if (batch_in_flight->closed[request]) return;
  const std::string message = "model '" + model_ + "': " + reason;
  Log(TRITONSERVER_LOG_ERROR, message);
  const HeldResponses held(batch_in_flight->batch, cached_output_);
  Refuse(batch_in_flight->batch.requests()[request], code, message);
  Close(batch_in_flight, request, false);
}

void ConcurrentExecutor::Break(const std::string& reason, TRITONSERVER_Error_Code code) {
  std::unordered_map<int64_t, std::unique_ptr<InFlightBatch>> in_flight;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    in_flight.swap(in_flight_);
    room_.notify_all();
  }
  connection_->Close();
  for (const auto& [sequence, batch_in_flight] : in_flight) {
    for (size_t i = 0; i < batch_in_flight->closed.size(); ++i) Fail(batch_in_flight.get(), i, code, reason);
  }
}

}  // namespace pytriton
