// Concurrent execution: many batches at a time on one instance, for coroutines and streams. Responses come per request,
// in any order across requests. Counterpart of `worker/concurrent.py`.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "model_instance/batch.h"
#include "model_instance/batch_durations.h"
#include "model_instance/instance_context.h"
#include "services/service_channel.h"
#include "transport/adaptive_spin.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/cancellation.h"
#include "triton/request_statistics.h"

namespace pytriton {

class ConcurrentExecutor {
 public:
  // Starts to receive responses. `service`: the worker's channel. `context` outlives the executor.
  ConcurrentExecutor(std::shared_ptr<Connection> connection, std::shared_ptr<ServiceChannel> service,
                     const InstanceContext* context);
  ~ConcurrentExecutor();
  ConcurrentExecutor(const ConcurrentExecutor&) = delete;
  ConcurrentExecutor& operator=(const ConcurrentExecutor&) = delete;

  // Whether the worker is connected.
  bool alive();

  // Sends a batch to the worker, and returns once there is room for another; meanwhile, Triton sends batches to other
  // instances. Takes ownership of the requests and responds to them, now or later, unless it returns false because the
  // worker has disconnected. For one thread at a time.
  bool Submit(NotificationKind kind, TRITONBACKEND_Request** requests, uint32_t request_count);

 private:
  // A batch that the worker is serving.
  struct InFlightBatch {
    InFlightBatch(Batch batch, bool is_warmup);

    TRITONBACKEND_Request* request(size_t index) const { return batch.requests()[index]; }
    // Whether the worker has ended all requests, and they were returned to Triton.
    bool IsComplete() const;

    const BusyWorker busy_worker;
    Batch batch;
    Timing timing;
    std::vector<bool> closed;   // requests that were returned to Triton
    std::vector<bool> ended;    // requests that the worker has ended
    std::vector<bool> leaving;  // requests whose client has disconnected
    std::vector<bool> failed;   // requests to which an error was sent, perhaps between other responses
    size_t open;                // requests that the worker has not ended
    bool any_succeeded = false;
    bool any_failed = false;
    const bool is_warmup;  // not counted
    std::optional<ActiveCallChain> call_chain;
    uint64_t calls_before = 0;  // sent by the worker before this batch
  };

  // Returns the batch of those requests that can be served, null if there are none; rejects the others.
  std::unique_ptr<InFlightBatch> Examine(NotificationKind kind, TRITONBACKEND_Request** requests,
                                         uint32_t request_count);
  // Writes a batch to the arena; fails its requests if that is impossible. Returns the message's location.
  std::optional<Notification> Write(NotificationKind kind, InFlightBatch* batch_in_flight);
  // Adds a batch to those in flight; fails its requests if the worker has disconnected. Returns whether it was added.
  bool Add(int64_t sequence, std::unique_ptr<InFlightBatch> batch_in_flight);
  void Send(const Notification& notification);
  // Receives results in the instance's thread until nothing is in flight, or until `end_ns`. That saves waking the
  // listener, and the requests that arrive meanwhile form one batch.
  void ReceiveUntil(uint64_t end_ns);
  // Waits until another batch may be sent: while batches are short, not before `end_ns` unless nothing is in flight.
  void AwaitRoom(int64_t sequence, uint64_t end_ns);
  size_t in_flight();
  void Listen();
  // Wakes the listener if there is something to receive.
  void WakeListener();
  // Lets the listener sleep while nothing is in flight; unlocks `receiving` meanwhile.
  void AwaitWork(std::unique_lock<std::mutex>* receiving);
  void Receive(const Notification& notification);
  InFlightBatch* Find(int64_t sequence);
  void Deliver(int64_t sequence, const ResultMessage& result, const char* data);
  void Deliver(const ResponseEntry& response, const char* data);
  void Respond(InFlightBatch* batch_in_flight, const ResponseEntry& response, const char* data);
  void Complete(int64_t sequence, InFlightBatch* batch_in_flight);
  void Reschedule(InFlightBatch* batch_in_flight, size_t request, bool final);
  void Leave(InFlightBatch* batch_in_flight, size_t request);
  void PollCancelled();
  // Checks a batch for cancelled requests; returns whether any was closed.
  bool PollCancelled(InFlightBatch* batch_in_flight);
  void Cancel(const InFlightBatch& batch_in_flight, size_t request);
  void Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message);
  void Close(InFlightBatch* batch_in_flight, size_t request, bool succeeded);
  void Fail(InFlightBatch* batch_in_flight, size_t request, TRITONSERVER_Error_Code code, const std::string& reason);
  void FailAll(InFlightBatch* batch_in_flight, TRITONSERVER_Error_Code code, const std::string& reason);
  void Break(const std::string& reason, TRITONSERVER_Error_Code code);

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<ServiceChannel> service_;
  const InstanceContext& context_;
  BatchDurations durations_;  // of batches that have one result; changed while receiving
  std::mutex receiving_;      // held by the thread that receives: the listener, or that of the instance
  std::mutex memory_mutex_;   // guards the arena and its cancel flags
  std::mutex mutex_;          // guards the members below
  std::condition_variable room_;
  std::unordered_map<int64_t, std::unique_ptr<InFlightBatch>> in_flight_;  // removed while receiving
  bool broken_ = false;
  bool asleep_ = false;        // whether the listener sleeps until there is work
  const FileDescriptor work_;  // becomes readable when there is work
  int64_t returned_ = 0;       // the last batch from which the inference callable has returned
  std::thread listener_;
};

}  // namespace pytriton
