// Batches at a worker that takes many at a time: coroutines and streams. Answers come for one request at a time, in any
// order across requests.
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
#include "services/service_channel.h"
#include "transport/connection.h"
#include "triton/api.h"
#include "triton/cancellation.h"
#include "triton/request_statistics.h"
#include "triton/workarounds/warmup_guard.h"

namespace pytriton {

class ConcurrentExecutor {
 public:
  // Starts to listen for answers.
  // `cached_output` is an output of a model with a response cache, else empty.
  ConcurrentExecutor(std::shared_ptr<Connection> connection, TRITONBACKEND_ModelInstance* instance, std::string model,
                     std::string cached_output, WarmupGuard* warmup, std::shared_ptr<ServiceChannel> service);
  ~ConcurrentExecutor();
  ConcurrentExecutor(const ConcurrentExecutor&) = delete;
  ConcurrentExecutor& operator=(const ConcurrentExecutor&) = delete;

  // Whether the worker is there.
  bool alive();

  // Hands a batch to the worker, and returns once it has room for another: until then, Triton gives the next one to an
  // instance that has. Answers all requests, now or later, and owns them from here on; unless it returns false, as the
  // worker is gone. For one thread at a time.
  bool Launch(TRITONBACKEND_Request** requests, uint32_t request_count);

 private:
  // A batch at the worker.
  struct Flight {
    explicit Flight(Batch batch) : batch(std::move(batch)) {}

    Batch batch;
    Timing timing;
    std::vector<bool> closed;   // requests that Triton has back
    std::vector<bool> ended;    // requests that the worker is done with
    std::vector<bool> leaving;  // requests whose client was found gone
    size_t open = 0;            // requests that the worker is not done with
    bool any_succeeded = false;
    bool any_failed = false;
  };

  void Listen();
  void Receive(const Notification& notification);
  void Deliver(const ResponseEntry& response, const char* data);
  void Land(int64_t sequence, Flight* flight);
  void Reschedule(Flight* flight, size_t request, bool final);
  void LookForCancelled();
  void Refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const std::string& message);
  void Close(Flight* flight, size_t request, bool succeeded);
  void Fail(Flight* flight, size_t request, TRITONSERVER_Error_Code code, const std::string& reason);
  void Break(const std::string& reason, TRITONSERVER_Error_Code code);

  const std::shared_ptr<Connection> connection_;
  const RequestStatistics statistics_;
  const std::string model_;
  const std::string cached_output_;
  WarmupGuard* const warmup_;
  const std::shared_ptr<ServiceChannel> service_;
  std::mutex memory_mutex_;  // held while the arena changes, and while requests in it are marked as cancelled
  std::mutex mutex_;         // of what follows
  std::condition_variable room_;
  std::unordered_map<int64_t, std::unique_ptr<Flight>> flights_;  // only the listener takes any away
  bool broken_ = false;
  int64_t returned_ = 0;  // the batch that the inference callable has returned from last
  std::thread listener_;
};

}  // namespace pytriton
