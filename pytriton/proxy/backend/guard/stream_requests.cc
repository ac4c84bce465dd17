// Workaround for Triton (ending-streams): after the last response to a request of a stream that was cancelled, the
// front end releases the request at the next of its events. If the response before is still being written, there are
// two such events, and the second one finds another request in its place. So the front end learns of the end some time
// later.
#include "guard/stream_requests.h"

#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "guard/gate.h"
#include "guard/interpose.h"
#include "guard/notifications.h"
#include "guard/program_symbols.h"
#include "guard/streams.h"
#include "triton/api.h"

namespace pytriton::guard {

namespace {

// gRPC's allocators of responses: only they have a function for the start of a response. There are three.
struct GrpcAllocator {
  std::atomic<const TRITONSERVER_ResponseAllocator*> allocator;
  std::atomic<TRITONSERVER_ResponseAllocatorStartFn_t> start;
};

constexpr int kMostAllocators = 8;
GrpcAllocator grpc_allocators[kMostAllocators];

constexpr char kStreamStart[] = "_ZN6triton6server4grpc24StreamInferResponseStartEP30TRITONSERVER_ResponseAllocatorPv";

// How long a write to a stream that was cancelled may take to end. The request keeps its model loaded until then.
constexpr auto kDelay = std::chrono::milliseconds(500);
constexpr auto kStoppingCheck = std::chrono::milliseconds(5);

thread_local bool is_model_decoupled = false;

void NoteGrpcAllocator(const TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_ResponseAllocatorStartFn_t start) {
  for (GrpcAllocator& each : grpc_allocators) {
    const TRITONSERVER_ResponseAllocator* none = nullptr;
    if (!each.allocator.compare_exchange_strong(none, allocator)) continue;
    each.start = start;
    return;
  }
}

// Whether an allocator is that of streams. Where the program's symbols do not show that, only streams have models that
// are decoupled.
bool IsOfStreams(const TRITONSERVER_ResponseAllocator* allocator) {
  for (const GrpcAllocator& each : grpc_allocators) {
    if (each.allocator.load(std::memory_order_relaxed) != allocator) continue;
    static void* const start = ProgramSymbol(kStreamStart);
    return start == nullptr ? is_model_decoupled : reinterpret_cast<void*>(each.start.load()) == start;
  }
  return false;
}

// Where the responses to a request of a stream go, until the last one was given.
class Responses {
 public:
  Responses(const TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceResponseCompleteFn_t complete,
            void* argument)
      : request(request), complete_(complete), argument_(argument), is_decoupled_(is_model_decoupled) {
    if (!is_decoupled_) BeginPlainRequest();
  }
  ~Responses() {
    if (!is_decoupled_) EndPlainRequest();
  }
  Responses(const Responses&) = delete;
  Responses& operator=(const Responses&) = delete;

  void Give(TRITONSERVER_InferenceResponse* response, uint32_t flags) const {
    const StreamResponse given;
    complete_(response, flags, argument_);
  }

  const TRITONSERVER_InferenceRequest* const request;
  bool is_cancelled = false;

 private:
  const TRITONSERVER_InferenceResponseCompleteFn_t complete_;
  void* const argument_;
  const bool is_decoupled_;
};

// Those of the requests in flight, by which a request finds its own.
class ResponsesInFlight {
 public:
  void Add(Responses* responses) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_[responses->request] = responses;
  }

  void Cancel(const TRITONSERVER_InferenceRequest* request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(request);
    if (found != all_.end()) found->second->is_cancelled = true;
  }

  // Returns whether the request was cancelled.
  bool Remove(const Responses* responses) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(responses->request);
    if (found != all_.end() && found->second == responses) all_.erase(found);
    return responses->is_cancelled;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const TRITONSERVER_InferenceRequest*, Responses*> all_;
};

ResponsesInFlight& InFlight() {
  static auto& in_flight = *new ResponsesInFlight;  // NOLINT: never destroyed, as threads use it until the process ends
  return in_flight;
}

// Ends requests some time later; at once when the server stops.
class LateEnds {
 public:
  LateEnds() {
    sem_init(&count_, 0, 0);
    std::thread([this] { Run(); }).detach();
  }

  void Add(std::unique_ptr<Responses> responses) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      late_.push_back({std::chrono::steady_clock::now() + kDelay, std::move(responses)});
    }
    sem_post(&count_);
  }

 private:
  struct End {
    std::chrono::steady_clock::time_point time;
    std::unique_ptr<Responses> responses;
  };

  End Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    End next = std::move(late_.front());
    late_.pop_front();
    return next;
  }

  void Run() {
    while (true) {
      while (sem_wait(&count_) != 0) {
      }
      const End next = Next();
      while (std::chrono::steady_clock::now() < next.time && CurrentGate() != Gate::kStopping) {
        std::this_thread::sleep_for(kStoppingCheck);
      }
      next.responses->Give(nullptr, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    }
  }

  sem_t count_;
  std::mutex mutex_;
  std::deque<End> late_;
};

void EndLater(std::unique_ptr<Responses> responses) {
  static auto& late = *new LateEnds;  // NOLINT: never destroyed, as its thread runs until the process ends
  late.Add(std::move(responses));
}

void Complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* responses) {
  auto* const each = static_cast<Responses*>(responses);
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) == 0) return each->Give(response, flags);
  std::unique_ptr<Responses> last(each);
  const StreamResponse given;  // so that a cancellation comes either before or after the rest
  if (!InFlight().Remove(each)) return each->Give(response, flags);
  // The front end would delete the response, which keeps its model loaded.
  PYTRITON_NEXT(TRITONSERVER_InferenceResponseDelete)(response);
  EndLater(std::move(last));
}

// Those of the request that the calling thread prepares.
thread_local std::unique_ptr<Responses> prepared;

}  // namespace

void NoteTransactionProperties(uint32_t flags) { is_model_decoupled = (flags & TRITONSERVER_TXN_DECOUPLED) != 0; }

TRITONSERVER_Error* InferAsync(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request,
                               TRITONSERVER_InferenceTrace* trace) {
  const auto infer = PYTRITON_NEXT(TRITONSERVER_ServerInferAsync);
  if (!IsStreamThread()) return infer(server, request, trace);
  Responses* const passed = prepared.release();  // to be deleted with the last response, which may have come already
  if (passed != nullptr) InFlight().Add(passed);
  TRITONSERVER_Error* error = infer(server, request, trace);
  if (error != nullptr && passed != nullptr) {
    InFlight().Remove(passed);
    prepared.reset(passed);
  }
  ExpectStreamMutex();
  return error;
}

}  // namespace pytriton::guard

using namespace pytriton::guard;  // NOLINT: this file is a program's

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator** allocator,
                                                      TRITONSERVER_ResponseAllocatorAllocFn_t allocate,
                                                      TRITONSERVER_ResponseAllocatorReleaseFn_t release,
                                                      TRITONSERVER_ResponseAllocatorStartFn_t start) {
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_ResponseAllocatorNew)(allocator, allocate, release, start);
  if (error == nullptr && start != nullptr && PYTRITON_CALLED_BY_PROGRAM()) NoteGrpcAllocator(*allocator, start);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request) {
  if (IsStreamThread()) InFlight().Cancel(request);
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestCancel)(request);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator, void* allocator_argument,
    TRITONSERVER_InferenceResponseCompleteFn_t complete, void* argument) {
  if (!IsStreamThread() && IsOfStreams(allocator)) {
    WatchNotifications();
    BecomeStreamThread();
  }
  if (IsStreamThread()) {
    prepared = std::make_unique<Responses>(request, complete, argument);
    complete = Complete;
    argument = prepared.get();
  }
  return PYTRITON_NEXT(TRITONSERVER_InferenceRequestSetResponseCallback)(request, allocator, allocator_argument,
                                                                         complete, argument);
}
}
