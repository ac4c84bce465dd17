#include "pipeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "responses.h"
#include "triton_error.h"

namespace pytriton {

namespace {

constexpr uint64_t kLookEveryNs = 50'000'000;

}  // namespace

Pipeline::Pipeline(std::shared_ptr<Connection> connection, TRITONBACKEND_ModelInstance* instance, std::string model,
                   std::string cached_output, WarmupGuard* warmup, std::shared_ptr<ServiceChannel> service)
    : connection_(std::move(connection)),
      accounts_(instance),
      model_(std::move(model)),
      cached_output_(std::move(cached_output)),
      warmup_(warmup),
      service_(std::move(service)) {
  listener_ = std::thread([this] { Listen(); });
}

Pipeline::~Pipeline() {
  connection_->Close();
  listener_.join();
}

bool Pipeline::alive() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !broken_;
}

bool Pipeline::Launch(TRITONBACKEND_Request** requests, uint32_t request_count) {
  if (!alive()) return false;
  auto flight = std::make_unique<Flight>(Batch(connection_->model(), requests, request_count));
  flight->timing.exec_start = Now();
  for (const Rejection& rejection : flight->batch.rejections()) {
    Refuse(rejection.request, rejection.code, "model '" + model_ + "': " + rejection.reason);
    accounts_.Close(rejection.request, false, Timing(), 0);
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
  if (!flight->batch.callers().empty()) service_->Began(sequence, flight->batch.callers());
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

void Pipeline::Listen() {
  uint64_t looked = 0;
  try {
    while (true) {
      Bell bell;
      if (connection_->Receive(&bell)) Receive(bell);
      const uint64_t now = Now();
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

void Pipeline::Receive(const Bell& bell) {
  if (bell.kind == static_cast<int64_t>(BellKind::kReturned)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    returned_ = bell.sequence;
    room_.notify_one();
    return;
  }
  if (bell.kind != static_cast<int64_t>(BellKind::kAnswers)) throw ProtocolError("the worker answered out of turn");
  const char* message = connection_->worker_arena().At(bell.offset, bell.size);
  MessageReader reader(message, bell.size);
  const AnswersMessage answers = DecodeAnswers(&reader);
  for (const Answer& answer : answers.answers) Deliver(answer, message + reader.data_offset());
  connection_->worker_arena().Release(bell.offset);
}

void Pipeline::Deliver(const Answer& answer, const char* data) {
  Flight* flight = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = flights_.find(answer.sequence);
    if (found != flights_.end()) flight = found->second.get();
  }
  const auto request = static_cast<size_t>(answer.request);
  if (flight == nullptr || answer.request < 0 || request >= flight->closed.size() || flight->ended[request]) {
    throw ProtocolError("the worker answered a request that it does not have");
  }
  if (answer.response && !answer.final && !connection_->model().decoupled) {
    throw ProtocolError("the worker answers in parts, which only decoupled models may");
  }
  flight->timing.compute_start = answer.compute_start_ns;
  flight->timing.compute_end = answer.compute_end_ns;
  if (!flight->closed[request]) {  // else the client is gone, or was told of an error
    if (IsCancelled(flight->batch.requests()[request])) {
      // Its last word is said when it is looked for such requests.
    } else if (answer.failed && answer.code == kReschedule) {
      Reschedule(flight, request, answer.final);
    } else if (answer.failed) {
      if (!answer.detail.empty()) Log(TRITONSERVER_LOG_ERROR, answer.detail);
      Refuse(flight->batch.requests()[request], static_cast<TRITONSERVER_Error_Code>(answer.code), answer.message);
      Close(flight, request, false);
    } else if (answer.response) {
      const bool responded = Respond(flight->batch, connection_->model(), answer, data, cached_output_);
      if (answer.final || !responded) Close(flight, request, responded);
    } else if (answer.final && connection_->model().decoupled) {
      RespondFinal(flight->batch.requests()[request]);
      Close(flight, request, true);
    } else if (answer.final) {
      Fail(flight, request, TRITONSERVER_ERROR_INTERNAL, "the request was answered with nothing");
    }
    if (flight->closed[request] && !answer.final) {
      const std::lock_guard<std::mutex> memory(memory_mutex_);
      flight->batch.Cancel(request);
    }
  }
  if (!answer.final) return;
  flight->ended[request] = true;
  --flight->open;
  Land(answer.sequence, flight);
}

// Ends a batch once the worker is done with it, and Triton has all its requests back.
void Pipeline::Land(int64_t sequence, Flight* flight) {
  if (flight->open > 0 || std::find(flight->closed.begin(), flight->closed.end(), false) != flight->closed.end())
    return;
  if (!flight->any_failed) warmup_->Done(true);
  if (flight->any_succeeded) accounts_.CloseBatch(flight->batch.total_rows(), flight->timing, Now());
  if (!flight->batch.callers().empty()) service_->Ended(sequence);
  const std::lock_guard<std::mutex> lock(mutex_);
  flights_.erase(sequence);
  room_.notify_one();
}

// The requests of clients that are gone are answered and forgotten; the worker is told, and ends them in its own time.
void Pipeline::LookForCancelled() {
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

void Pipeline::Reschedule(Flight* flight, size_t request, bool final) {
  if (!final) throw ProtocolError("the worker has more to say of a request that it gives back");
  const Outcome outcome = pytriton::Reschedule(flight->batch.requests()[request], cached_output_);
  if (outcome == Outcome::kFailed) return Close(flight, request, false);
  flight->closed[request] = true;
  flight->any_succeeded = true;
}

void Pipeline::Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message) {
  warmup_->Done(false);  // before Triton learns of it
  RespondError(request, code, message, cached_output_);
}

void Pipeline::Close(Flight* flight, size_t request, bool succeeded) {
  flight->closed[request] = true;
  (succeeded ? flight->any_succeeded : flight->any_failed) = true;
  accounts_.Close(flight->batch.requests()[request], succeeded, flight->timing, Now());
}

void Pipeline::Fail(Flight* flight, size_t request, TRITONSERVER_Error_Code code, const std::string& reason) {
  if (flight->closed[request]) return;
  const std::string message = "model '" + model_ + "': " + reason;
  Log(TRITONSERVER_LOG_ERROR, message);
  Refuse(flight->batch.requests()[request], code, message);
  Close(flight, request, false);
}

void Pipeline::Break(const std::string& reason, TRITONSERVER_Error_Code code) {
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
