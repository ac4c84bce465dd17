#include "model_instance/concurrent_executor.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/workarounds.h"
#include "model_instance/held_responses.h"
#include "model_instance/result_responder.h"
#include "transport/time_slice.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr uint64_t kPollEveryNs = 50'000'000;

}  // namespace

ConcurrentExecutor::InFlightBatch::InFlightBatch(Batch batch, bool is_warmup)
    : batch(std::move(batch)),
      closed(this->batch.requests().size()),
      ended(closed.size()),
      leaving(closed.size()),
      failed(closed.size()),
      open(closed.size()),
      is_warmup(is_warmup) {
  timing.exec_start = MonotonicNs();
}

bool ConcurrentExecutor::InFlightBatch::IsComplete() const {
  return open == 0 && std::find(closed.begin(), closed.end(), false) == closed.end();
}

ConcurrentExecutor::ConcurrentExecutor(std::shared_ptr<Connection> connection, std::shared_ptr<ServiceChannel> service,
                                       const InstanceContext* context)
    : connection_(std::move(connection)),
      service_(std::move(service)),
      context_(*context),
      work_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
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
  std::unique_ptr<InFlightBatch> batch_in_flight = Examine(kind, requests, request_count);
  if (batch_in_flight == nullptr) return true;
  const std::optional<Notification> notification = Write(kind, batch_in_flight.get());
  if (!notification.has_value()) return true;
  const uint64_t short_until = MonotonicNs() + BatchDurations::ShortNs(request_count);
  std::unique_lock<std::mutex> receiving(receiving_, std::defer_lock);
  if (durations_.ShouldWait()) static_cast<void>(receiving.try_lock());
  if (!Add(notification->sequence, std::move(batch_in_flight))) return true;
  if (!receiving.owns_lock()) WakeListener();
  Send(*notification);
  if (receiving.owns_lock()) {
    ReceiveUntil(short_until);
    receiving.unlock();
    WakeListener();  // if the batch is not that short
  }
  AwaitRoom(notification->sequence, short_until);
  return true;
}

std::unique_ptr<ConcurrentExecutor::InFlightBatch> ConcurrentExecutor::Examine(NotificationKind kind,
                                                                               TRITONBACKEND_Request** requests,
                                                                               uint32_t request_count) {
  auto batch_in_flight = std::make_unique<InFlightBatch>(
      Batch(connection_->model(), context_.input_ranks, requests, request_count), kind == NotificationKind::kWarmup);
  const Batch& batch = batch_in_flight->batch;
  for (const Rejection& rejection : batch.rejections()) {
    const HeldResponses held(batch, context_.responder.cached_output());
    Refuse(rejection.request, rejection.code, context_.Describe(rejection.reason));
    context_.statistics.Close(rejection.request, false, Timing(), 0);
  }
  if (batch.requests().empty()) return nullptr;
  if (!batch_in_flight->is_warmup) {
    context_.metrics->Begin(batch.requests(), batch.total_rows(), batch_in_flight->timing.exec_start);
  }
  return batch_in_flight;
}

std::optional<Notification> ConcurrentExecutor::Write(NotificationKind kind, InFlightBatch* batch_in_flight) {
  Block block;
  int64_t size = 0;
  try {
    const std::lock_guard<std::mutex> memory(memory_mutex_);
    block = batch_in_flight->batch.Write(connection_->arena().get(), connection_->device_arena(), &size);
  } catch (const std::exception& error) {
    FailAll(batch_in_flight, TRITONSERVER_ERROR_INTERNAL, error.what());
    return std::nullopt;
  }
  batch_in_flight->timing.sent = MonotonicNs();
  return Notification{static_cast<int64_t>(kind), connection_->NextSequence(), block.offset, size};
}

bool ConcurrentExecutor::Add(int64_t sequence, std::unique_ptr<InFlightBatch> batch_in_flight) {
  batch_in_flight->calls_before = service_->call_count();
  batch_in_flight->call_chain.emplace(service_, sequence, batch_in_flight->batch.call_chain());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_) in_flight_[sequence] = std::move(batch_in_flight);
  }
  if (batch_in_flight == nullptr) return true;
  FailAll(batch_in_flight.get(), TRITONSERVER_ERROR_UNAVAILABLE, "the worker has gone");
  return false;
}

// Without the lock: this may block until the worker receives, and the worker may wait for its responses to be received.
void ConcurrentExecutor::Send(const Notification& notification) {
  try {
    connection_->Send(notification);
  } catch (const ChannelError&) {
    // The receiving thread notices, and fails all requests in flight.
  }
}

void ConcurrentExecutor::ReceiveUntil(uint64_t end_ns) {
  [[maybe_unused]] static thread_local const bool has_short_time_slice = RequestShortTimeSlice();
  Notification notification;
  try {
    while (in_flight() > 0 && connection_->ReceiveUntil(&notification, end_ns)) Receive(notification);
  } catch (const ChannelError&) {
    // The listener notices, and fails all requests in flight.
  } catch (const std::exception& error) {
    Break(error.what(), TRITONSERVER_ERROR_INTERNAL);
  }
}

void ConcurrentExecutor::AwaitRoom(int64_t sequence, uint64_t end_ns) {
  const bool deferred = connection_->model().mode == ExecutionMode::kDeferred;
  // A busy worker takes batches late. Requests that arrive meanwhile should wait in Triton's queue, and form one batch.
  if (!deferred && in_flight() > 1) {
    while (alive() && !connection_->AwaitTaken()) continue;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (durations_.ShouldWait()) {
    const std::chrono::steady_clock::time_point end{std::chrono::nanoseconds(end_ns)};
    room_.wait_until(lock, end, [&] { return broken_ || in_flight_.empty(); });
  }
  const auto limit = static_cast<size_t>(connection_->model().max_in_flight);
  room_.wait(lock, [&] {
    if (broken_) return true;
    return in_flight_.size() < limit && (!deferred || returned_ >= sequence || in_flight_.count(sequence) == 0);
  });
}

void ConcurrentExecutor::Listen() {
  uint64_t looked = 0;
  std::unique_lock<std::mutex> receiving(receiving_);
  try {
    while (true) {
      Notification notification;
      const bool has_received = connection_->Receive(&notification);
      if (has_received) Receive(notification);
      if (!has_received || durations_.ShouldWait()) AwaitWork(&receiving);
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

void ConcurrentExecutor::WakeListener() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!asleep_ || in_flight_.empty()) return;
  asleep_ = false;
  eventfd_write(work_.get(), 1);
}

void ConcurrentExecutor::AwaitWork(std::unique_lock<std::mutex>* receiving) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!in_flight_.empty() || !work_.valid()) return;
    asleep_ = true;
  }
  receiving->unlock();
  connection_->AwaitEnd(work_.get());
  receiving->lock();
  const std::lock_guard<std::mutex> lock(mutex_);
  asleep_ = false;
  eventfd_t woken;
  eventfd_read(work_.get(), &woken);
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
  const PeerBlock message(&connection_->worker_arena(), notification.offset, notification.size);
  MessageReader reader(message.data(), message.size());
  if (is_result) {
    const ResultMessage result = DecodeResult(&reader);
    Deliver(notification.sequence, result, message.data() + reader.data_offset());
  } else {
    const ResponsesMessage responses = DecodeResponses(&reader);
    for (const ResponseEntry& response : responses.responses) Deliver(response, message.data() + reader.data_offset());
  }
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
  const auto duration_ns = static_cast<int64_t>(MonotonicNs() - batch_in_flight->timing.sent);
  durations_.Record(duration_ns, batch.requests().size(), service_->call_count() != batch_in_flight->calls_before);
  connection_->RecordRoundTrip(batch.requests().size(), duration_ns);
  const HeldResponses held(batch, context_.responder.cached_output());
  batch_in_flight->timing.compute_start = result.compute_start_ns;
  batch_in_flight->timing.compute_end = result.compute_end_ns;
  context_.Report(result.failures, batch.requests().size());
  // The final responses to cancelled requests are sent by the poll for them.
  std::vector<bool> left_out = batch_in_flight->closed;
  for (size_t i = 0; i < left_out.size(); ++i) left_out[i] = left_out[i] || IsCancelled(batch.requests()[i]);
  for (const RequestFailure& failure : result.failures) {
    if (!failure.failure.is_reschedule()) context_.warmup->Done(false);  // before Triton is notified
  }
  const std::vector<Outcome> outcomes =
      ResultResponder(batch, connection_.get(), result, data, context_.responder).Respond(left_out);
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
  const HeldResponses held(batch_in_flight->batch, context_.responder.cached_output());
  batch_in_flight->timing.compute_start = response.compute_start_ns;
  batch_in_flight->timing.compute_end = response.compute_end_ns;
  if (!batch_in_flight->closed[request]) {  // otherwise the client has disconnected, or received an error
    Respond(batch_in_flight, response, data);
    if (batch_in_flight->closed[request] && !response.final) Cancel(*batch_in_flight, request);
  }
  if (!response.final) return;
  batch_in_flight->ended[request] = true;
  --batch_in_flight->open;
  Complete(response.sequence, batch_in_flight);
}

void ConcurrentExecutor::Respond(InFlightBatch* batch_in_flight, const ResponseEntry& response, const char* data) {
  const auto index = static_cast<size_t>(response.request);
  TRITONBACKEND_Request* const request = batch_in_flight->request(index);
  const bool is_decoupled = connection_->model().decoupled;
  if (IsCancelled(request)) return;  // its final response is sent by the poll for such requests
  if (response.failure.has_value() && response.failure->is_reschedule()) {
    Reschedule(batch_in_flight, index, response.final);
  } else if (response.failure.has_value()) {
    context_.Report(*response.failure, 1);
    const auto code = static_cast<TRITONSERVER_Error_Code>(response.failure->code);
    if (response.final || !is_decoupled) {
      Refuse(request, code, response.failure->message);
      Close(batch_in_flight, index, false);
    } else {
      context_.warmup->Done(false);
      context_.responder.RespondErrorAndContinue(request, code, response.failure->message);
      batch_in_flight->failed[index] = true;
    }
  } else if (response.response) {
    const bool responded =
        context_.responder.RespondOutputs(batch_in_flight->batch, connection_->model(), response, data);
    if (response.final || !responded) Close(batch_in_flight, index, responded && !batch_in_flight->failed[index]);
  } else if (response.final && is_decoupled) {
    context_.responder.RespondEnd(request);
    Close(batch_in_flight, index, !batch_in_flight->failed[index]);
  } else if (response.final) {
    Fail(batch_in_flight, index, TRITONSERVER_ERROR_INTERNAL, "the request ended without a response");
  }
}

void ConcurrentExecutor::Complete(int64_t sequence, InFlightBatch* batch_in_flight) {
  if (!batch_in_flight->IsComplete()) return;
  if (!batch_in_flight->any_failed) context_.warmup->Done(true);
  if (batch_in_flight->any_succeeded) {
    context_.statistics.CloseBatch(batch_in_flight->batch.total_rows(), batch_in_flight->timing, MonotonicNs());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.erase(sequence);
  room_.notify_one();
}

// Responds to the requests of clients that have disconnected, and sets their cancel flags; the worker ends them later.
void ConcurrentExecutor::PollCancelled() {
  std::vector<std::pair<int64_t, InFlightBatch*>> in_flight;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_flight.reserve(in_flight_.size());
    for (const auto& [sequence, batch_in_flight] : in_flight_) in_flight.emplace_back(sequence, batch_in_flight.get());
  }
  for (const auto& [sequence, batch_in_flight] : in_flight) {
    if (PollCancelled(batch_in_flight)) Complete(sequence, batch_in_flight);
  }
}

bool ConcurrentExecutor::PollCancelled(InFlightBatch* batch_in_flight) {
  static const bool is_late = NeedsWorkaround("late-responses");
  bool any = false;
  for (size_t i = 0; i < batch_in_flight->closed.size(); ++i) {
    if (batch_in_flight->closed[i]) continue;
    TRITONBACKEND_Request* const request = batch_in_flight->request(i);
    const Cancellation cancellation = CancellationOf(request, batch_in_flight->timing.exec_start);
    if (cancellation == Cancellation::kNone) continue;
    if (cancellation == Cancellation::kByClient && is_late && !batch_in_flight->leaving[i]) {
      // Workaround for Triton (late-responses): not at once, since a response sent while Triton handles a client's
      // disconnection may crash the server (https://github.com/triton-inference-server/server/pull/7840).
      batch_in_flight->leaving[i] = true;
    } else {
      const HeldResponses held(batch_in_flight->batch, context_.responder.cached_output());
      Refuse(request, Code(cancellation), context_.Describe(Reason(cancellation)));
      context_.metrics->CountCancelled(cancellation);
      Close(batch_in_flight, i, false);
      any = true;
    }
    Cancel(*batch_in_flight, i);
  }
  return any;
}

// Sets a request's cancel flag.
void ConcurrentExecutor::Cancel(const InFlightBatch& batch_in_flight, size_t request) {
  const std::lock_guard<std::mutex> memory(memory_mutex_);
  batch_in_flight.batch.Cancel(request);
}

void ConcurrentExecutor::Reschedule(InFlightBatch* batch_in_flight, size_t request, bool final) {
  if (!final) throw ProtocolError("the worker sent more for a request that it rescheduled");
  const Outcome outcome = context_.responder.Reschedule(batch_in_flight->request(request));
  if (outcome == Outcome::kFailed) return Close(batch_in_flight, request, false);
  Leave(batch_in_flight, request);
}

void ConcurrentExecutor::Leave(InFlightBatch* batch_in_flight, size_t request) {
  if (!batch_in_flight->is_warmup) context_.metrics->Leave();
  batch_in_flight->closed[request] = true;
  batch_in_flight->any_succeeded = true;
}

void ConcurrentExecutor::Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                                const std::string& message) {
  context_.warmup->Done(false);  // before Triton is notified
  context_.responder.RespondError(request, code, message);
}

void ConcurrentExecutor::Close(InFlightBatch* batch_in_flight, size_t request, bool succeeded) {
  batch_in_flight->closed[request] = true;
  (succeeded ? batch_in_flight->any_succeeded : batch_in_flight->any_failed) = true;
  const uint64_t now = MonotonicNs();
  if (!batch_in_flight->is_warmup) {
    context_.metrics->Ran(batch_in_flight->timing, 1);
    context_.metrics->End(batch_in_flight->request(request), batch_in_flight->timing.exec_start, now);
  }
  context_.statistics.Close(batch_in_flight->request(request), succeeded, batch_in_flight->timing, now);
}

void ConcurrentExecutor::Fail(InFlightBatch* batch_in_flight, size_t request, TRITONSERVER_Error_Code code,
                              const std::string& reason) {
  if (batch_in_flight->closed[request]) return;
  const std::string message = context_.Describe(reason);
  Log(TRITONSERVER_LOG_ERROR, message);
  const HeldResponses held(batch_in_flight->batch, context_.responder.cached_output());
  Refuse(batch_in_flight->request(request), code, message);
  Close(batch_in_flight, request, false);
}

void ConcurrentExecutor::FailAll(InFlightBatch* batch_in_flight, TRITONSERVER_Error_Code code,
                                 const std::string& reason) {
  for (size_t i = 0; i < batch_in_flight->closed.size(); ++i) Fail(batch_in_flight, i, code, reason);
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
  for (const auto& [sequence, batch_in_flight] : in_flight) FailAll(batch_in_flight.get(), code, reason);
}

}  // namespace pytriton
