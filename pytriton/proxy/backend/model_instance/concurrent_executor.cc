#include "model_instance/concurrent_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "model_instance/responses.h"
#include "triton/error.h"

namespace pytriton {

namespace {

constexpr uint64_t kLookEveryNs = 50'000'000;

}  // namespace

ConcurrentExecutor::ConcurrentExecutor(std::shared_ptr<Connection> connection, TRITONBACKEND_ModelInstance* instance,
                                       std::string model, std::string cached_output, WarmupGuard* warmup,
                                       std::shared_ptr<ServiceChannel> service)
    : connection_(std::move(connection)),
      statistics_(instance),
      model_(std::move(model)),
      cached_output_(std::move(cached_output)),
      warmup_(warmup),
      service_(std::move(service)) {
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

bool ConcurrentExecutor::Launch(TRITONBACKEND_Request** requests, uint32_t request_count) {
  if (!alive()) return false;
  auto flight = std::make_unique<Flight>(Batch(connection_->model(), requests, request_count));
  flight->timing.exec_start = MonotonicNs();
  for (const Rejection& rejection : flight->batch.rejections()) {
    Refuse(rejection.request, rejection.code, "model '" + model_ + "': " + rejection.reason);
    statistics_.Close(rejection.request, false, Timing(), 0);
  }
  const size_t count = flight->batch.requests().size();
  if (count == 0) return true;
  flight->open = count;
  flight->closed.resize(count);
  flight->ended.resize(count);
  flight->leaving.resize(count);
  Block block;
  int64_t size = 0;
  try {
    const std::lock_guard<std::mutex> memory(memory_mutex_);
    block = flight->batch.Write(connection_->arena().get(), &size);
  } catch (const std::exception& error) {
    for (size_t i = 0; i < count; ++i) Fail(flight.get(), i, TRITONSERVER_ERROR_INTERNAL, error.what());
    return true;
  }
  const int64_t sequence = connection_->NextSequence();
  if (!flight->batch.call_chain().empty()) service_->Began(sequence, flight->batch.call_chain());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_) flights_[sequence] = std::move(flight);
  }
  if (flight != nullptr) {
    for (size_t i = 0; i < count; ++i) Fail(flight.get(), i, TRITONSERVER_ERROR_UNAVAILABLE, "the worker is gone");
    return true;
  }
  // Without the lock: it takes as long as the worker does, which may be waiting for its answers to be received.
  try {
    connection_->Send(sequence, block.offset, size);
  } catch (const ChannelError&) {
    // The listener hears of it, and answers all that is in flight.
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto limit = static_cast<size_t>(connection_->model().in_flight);
  const bool in_turn = connection_->model().in_turn;
  room_.wait(lock, [&] {
    if (broken_) return true;
    return flights_.size() < limit && (!in_turn || returned_ >= sequence || flights_.count(sequence) == 0);
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
      if (now - looked < kLookEveryNs) continue;
      looked = now;
      LookForCancelled();
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
    returned_ = notification.sequence;
    room_.notify_one();
    return;
  }
  if (notification.kind != static_cast<int64_t>(NotificationKind::kResponses))
    throw ProtocolError("the worker answered out of turn");
  const char* message = connection_->worker_arena().At(notification.offset, notification.size);
  MessageReader reader(message, notification.size);
  const ResponsesMessage responses = DecodeResponses(&reader);
  for (const ResponseEntry& response : responses.responses) Deliver(response, message + reader.data_offset());
  connection_->worker_arena().Release(notification.offset);
}

void ConcurrentExecutor::Deliver(const ResponseEntry& response, const char* data) {
  Flight* flight = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = flights_.find(response.sequence);
    if (found != flights_.end()) flight = found->second.get();
  }
  const auto request = static_cast<size_t>(response.request);
  if (flight == nullptr || response.request < 0 || request >= flight->closed.size() || flight->ended[request]) {
    throw ProtocolError("the worker answered a request that it does not have");
  }
  if (response.response && !response.final && !connection_->model().decoupled) {
    throw ProtocolError("the worker answers in parts, which only decoupled models may");
  }
  flight->timing.compute_start = response.compute_start_ns;
  flight->timing.compute_end = response.compute_end_ns;
  if (!flight->closed[request]) {  // else the client is gone, or was told of an error
    if (IsCancelled(flight->batch.requests()[request])) {
      // Its last word is said when it is looked for such requests.
    } else if (response.failed && response.code == kReschedule) {
      Reschedule(flight, request, response.final);
    } else if (response.failed) {
      if (!response.detail.empty()) Log(TRITONSERVER_LOG_ERROR, response.detail);
      Refuse(flight->batch.requests()[request], static_cast<TRITONSERVER_Error_Code>(response.code), response.message);
      Close(flight, request, false);
    } else if (response.response) {
      const bool responded = Respond(flight->batch, connection_->model(), response, data, cached_output_);
      if (response.final || !responded) Close(flight, request, responded);
    } else if (response.final && connection_->model().decoupled) {
      RespondFinal(flight->batch.requests()[request]);
      Close(flight, request, true);
    } else if (response.final) {
      Fail(flight, request, TRITONSERVER_ERROR_INTERNAL, "the request was answered with nothing");
    }
    if (flight->closed[request] && !response.final) {
      const std::lock_guard<std::mutex> memory(memory_mutex_);
      flight->batch.Cancel(request);
    }
  }
  if (!response.final) return;
  flight->ended[request] = true;
  --flight->open;
  Land(response.sequence, flight);
}

// Ends a batch once the worker is done with it, and Triton has all its requests back.
void ConcurrentExecutor::Land(int64_t sequence, Flight* flight) {
  if (flight->open > 0 || std::find(flight->closed.begin(), flight->closed.end(), false) != flight->closed.end())
    return;
  if (!flight->any_failed) warmup_->Done(true);
  if (flight->any_succeeded) statistics_.CloseBatch(flight->batch.total_rows(), flight->timing, MonotonicNs());
  if (!flight->batch.call_chain().empty()) service_->Ended(sequence);
  const std::lock_guard<std::mutex> lock(mutex_);
  flights_.erase(sequence);
  room_.notify_one();
}

// The requests of clients that are gone are answered and forgotten; the worker is told, and ends them in its own time.
void ConcurrentExecutor::LookForCancelled() {
  std::vector<std::pair<int64_t, Flight*>> flights;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    flights.reserve(flights_.size());
    for (const auto& [sequence, flight] : flights_) flights.emplace_back(sequence, flight.get());
  }
  for (const auto& [sequence, flight] : flights) {
    bool any = false;
    for (size_t i = 0; i < flight->closed.size(); ++i) {
      if (flight->closed[i]) continue;
      const Cancellation cancellation = CancellationOf(flight->batch.requests()[i], flight->timing.exec_start);
      if (cancellation == Cancellation::kNone) continue;
      if (cancellation == Cancellation::kByClient && !flight->leaving[i]) {
        // Not yet: while Triton 2.51 sees to a client that has left, an answer to it may crash the server
        // (https://github.com/triton-inference-server/server/pull/7840).
        flight->leaving[i] = true;
      } else {
        Refuse(flight->batch.requests()[i], Code(cancellation), "model '" + model_ + "': " + Reason(cancellation));
        Close(flight, i, false);
        any = true;
      }
      const std::lock_guard<std::mutex> memory(memory_mutex_);
      flight->batch.Cancel(i);
    }
    if (any) Land(sequence, flight);
  }
}

void ConcurrentExecutor::Reschedule(Flight* flight, size_t request, bool final) {
  if (!final) throw ProtocolError("the worker has more to say of a request that it gives back");
  const Outcome outcome = pytriton::Reschedule(flight->batch.requests()[request], cached_output_);
  if (outcome == Outcome::kFailed) return Close(flight, request, false);
  flight->closed[request] = true;
  flight->any_succeeded = true;
}

void ConcurrentExecutor::Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code,
                                const std::string& message) {
  warmup_->Done(false);  // before Triton learns of it
  RespondError(request, code, message, cached_output_);
}

void ConcurrentExecutor::Close(Flight* flight, size_t request, bool succeeded) {
  flight->closed[request] = true;
  (succeeded ? flight->any_succeeded : flight->any_failed) = true;
  statistics_.Close(flight->batch.requests()[request], succeeded, flight->timing, MonotonicNs());
}

void ConcurrentExecutor::Fail(Flight* flight, size_t request, TRITONSERVER_Error_Code code, const std::string& reason) {
  if (flight->closed[request]) return;
  const std::string message = "model '" + model_ + "': " + reason;
  Log(TRITONSERVER_LOG_ERROR, message);
  Refuse(flight->batch.requests()[request], code, message);
  Close(flight, request, false);
}

void ConcurrentExecutor::Break(const std::string& reason, TRITONSERVER_Error_Code code) {
  std::unordered_map<int64_t, std::unique_ptr<Flight>> flights;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    flights.swap(flights_);
    room_.notify_all();
  }
  connection_->Close();
  for (const auto& [sequence, flight] : flights) {
    for (size_t i = 0; i < flight->closed.size(); ++i) Fail(flight.get(), i, code, reason);
  }
}

}  // namespace pytriton
