// Concurrent execution: many batches at a time on one instance, for coroutines and streams. Responses come per request,
// in any order across requests. Twin of `worker/concurrent.py`.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "model_instance/batch.h"
#include "services/model_metrics.h"
#include "services/service_channel.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/cancellation.h"
#include "triton/request_statistics.h"
#include "triton/workarounds/warmup_guard.h"

namespace pytriton {

class ConcurrentExecutor {
 public:
  // Starts to receive responses. `cached_output`: an output of a model with a response cache, or empty. `input_ranks`:
  // as for a batch; they outlive the executor, and so do the instance's metrics.
  ConcurrentExecutor(std::shared_ptr<Connection> connection, TRITONBACKEND_ModelInstance* instance, std::string model,
                     std::string cached_output, WarmupGuard* warmup, std::shared_ptr<ServiceChannel> service,
                     const std::vector<uint32_t>& input_ranks, InstanceMetrics* metrics);
  ~ConcurrentExecutor();
  ConcurrentExecutor(const ConcurrentExecutor&) = delete;
  ConcurrentExecutor& operator=(const ConcurrentExecutor&) = delete;

  // Whether the worker is connected.
  bool alive();

  // Sends a batch to the worker, and returns once there is room for another; meanwhile, Triton sends batches to other
  // instances. Takes ownership of the requests and responds to them, now or later, unless it returns false because the
  // worker has gone. For one thread at a time.
  bool Submit(NotificationKind kind, TRITONBACKEND_Request** requests, uint32_t request_count);

 private:
  // A batch that the worker is serving.
  struct InFlightBatch {
    explicit InFlightBatch(Batch batch) : batch(std::move(batch)) {}

    Batch batch;
    Timing timing;
    std::vector<bool> closed;   // requests that were returned to Triton
    std::vector<bool> ended;    // requests that the worker has ended
    std::vector<bool> leaving;  // requests whose client has gone
    size_t open = 0;            // requests that the worker has not ended
    bool any_succeeded = false;
    bool any_failed = false;
    bool is_warmup = false;  // which is not counted
  };

  size_t in_flight();
  void Listen();
  void Receive(const Notification& notification);
  InFlightBatch* Find(int64_t sequence);
  void Deliver(int64_t sequence, const ResultMessage& result, const char* data);
  void Deliver(const ResponseEntry& response, const char* data);
  void Complete(int64_t sequence, InFlightBatch* batch_in_flight);
  void Reschedule(InFlightBatch* batch_in_flight, size_t request, bool final);
  void Leave(InFlightBatch* batch_in_flight, size_t request);
  void PollCancelled();
  void Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message);
  void Close(InFlightBatch* batch_in_flight, size_t request, bool succeeded);
  void Fail(InFlightBatch* batch_in_flight, size_t request, TRITONSERVER_Error_Code code, const std::string& reason);
  void Break(const std::string& reason, TRITONSERVER_Error_Code code);

  const std::shared_ptr<Connection> connection_;
  const RequestStatistics statistics_;
  const std::string model_;
  const std::string cached_output_;
  WarmupGuard* const warmup_;
  const std::shared_ptr<ServiceChannel> service_;
  const std::vector<uint32_t>& input_ranks_;
  InstanceMetrics* const metrics_;
  std::mutex memory_mutex_;  // guards the arena and its cancel flags
  std::mutex mutex_;         // guards the members below
  std::condition_variable room_;
  std::unordered_map<int64_t, std::unique_ptr<InFlightBatch>> in_flight_;  // only the receiving thread removes any
  bool broken_ = false;
  int64_t returned_ = 0;  // the last batch from which the inference callable has returned
  std::thread listener_;
};

}  // namespace pytriton
