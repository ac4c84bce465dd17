// The backend's end of a model instance's service channel, which carries a worker's calls to the server and the
// replies: a Unix SEQPACKET socket beside the one for batches, and an arena for each direction, created on first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "services/call_chain.h"
#include "services/inference_request.h"
#include "services/metrics.h"
#include "services/model_control.h"
#include "transport/arena.h"
#include "transport/device_arena.h"
#include "transport/doorbell.h"
#include "triton/api.h"
#include "wire/service.h"

namespace pytriton {

// Resources that all channels of the backend share.
struct ServiceContext {
  FileDescriptor poll;                // the epoll instance of the service thread
  WakeFlag wake_flag;                 // where the service thread sleeps while busy
  std::atomic<uint64_t> received{0};  // notifications of workers
  OutputAllocator allocator;
  MetricFamilies families;
  Capacities capacities;
  ModelControl* models = nullptr;  // the service thread's data
  std::function<void(const std::shared_ptr<Arena>&)> on_arena;
};

class ServiceChannel : public std::enable_shared_from_this<ServiceChannel> {
 public:
  // `number` identifies the channel to the service thread.
  ServiceChannel(std::shared_ptr<ServiceContext> context, int64_t number, FileDescriptor socket,
                 TRITONSERVER_Server* server, std::string model, int64_t version);

  // Called by the instance. Sets how many batches its worker takes at a time.
  void SetCapacity(int64_t capacity);
  // Sets the call chain of a batch that the worker begins, `batch` being its sequence, or 0 in sequential mode. Not
  // needed if the chain is empty.
  void BeginCallChain(int64_t batch, const CallChain& call_chain);
  void EndCallChain(int64_t batch);
  // The number of requests to models that the worker has sent.
  uint64_t call_count() const { return call_count_; }
  // Called by the thread of an instance that polls for a result anyway. `Poll` receives calls in the place of the
  // service thread, until `EndPolling`.
  void Poll();
  void EndPolling();
  // Closes the channel, and cancels all calls in flight.
  void Close();

  // Called by the service thread.
  int socket() const { return socket_.get(); }
  bool closed() const { return closed_; }
  // Handles a notification of the worker. Returns whether it is still connected.
  bool Receive();
  // Closes the channel, and deletes the worker's metrics.
  void Retire();
  // Continues to send.
  void Flush();

  // Called by calls in flight, from any thread.
  TRITONSERVER_Server* server() const { return server_; }
  TRITONSERVER_ResponseAllocator* allocator() const { return context_->allocator.get(); }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  PeerDeviceArena* worker_device_arena() { return &worker_device_arena_; }
  // Allocates memory of a GPU, and writes its location into a block of the arena, with which it is released.
  const cuda::Memory& AllocateOnDevice(int64_t size, const cuda::GpuId& gpu, const Block& block);
  bool IsFirstGpuFailure() { return device_arena_->IsFirstFailure(); }
  void Add(int64_t number, InferenceRequest* inference);
  void Remove(int64_t number);
  // Returns whether the worker received the reply, and with it the outputs' blocks.
  bool Reply(int64_t number, const InferenceReplyMessage& message);
  // Reports an activity of a traced call, and when it was, on CLOCK_MONOTONIC.
  void SendActivity(int64_t number, int64_t activity, int64_t timestamp_ns);

 private:
  void ReceiveWhilePolling();
  void Handle(const Notification& notification, FileDescriptor file);
  void Open(const Notification& notification, FileDescriptor file);
  void Call(const Notification& notification);
  void Cancel(int64_t number);
  void DoWithModel(const Notification& notification);
  void DoWithMetric(const Notification& notification);
  void WriteLog(const Notification& notification);
  PeerBlock MessageOf(const Notification& notification) const;
  void Fail(int64_t number, TRITONSERVER_Error_Code code, const std::string& message);
  bool Send(const Notification& notification);
  bool SendNow(const Notification& notification);
  // Sets whether the service thread calls `Flush` once the socket has room.
  void AwaitRoom(bool awaits);
  CallChain CallersOfBatch(int64_t batch);

  const std::shared_ptr<ServiceContext> context_;
  const int64_t number_;
  const FileDescriptor socket_;
  TRITONSERVER_Server* const server_;
  const std::string model_;
  const int64_t version_;
  std::shared_ptr<Arena> arena_;  // both are set once the worker has opened the channel
  PeerArena worker_arena_;
  std::optional<DeviceArena> device_arena_;  // set then as well
  PeerDeviceArena worker_device_arena_;
  Metrics metrics_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> call_count_{0};
  std::mutex callers_mutex_;
  int64_t capacity_ = 0;
  std::map<int64_t, CallChain> call_chains_;  // by batch
  std::mutex receive_mutex_;                  // held while notifications are received, and for the metrics
  std::atomic<bool> can_poll_{false};         // whether the flag is there
  PollFlag poll_flag_;
  bool is_polling_ = false;  // the instance's
  std::mutex calls_mutex_;
  std::map<int64_t, InferenceRequest*> calls_;
  std::mutex send_mutex_;
  std::deque<Notification> unsent_;
  Doorbell doorbell_;  // in the arena, guarded by its mutex
};

// Sets the call chain of a batch for as long as the object exists, unless the chain is empty.
class ActiveCallChain {
 public:
  ActiveCallChain(const std::shared_ptr<ServiceChannel>& channel, int64_t batch, const CallChain& call_chain)
      : batch_(batch) {
    if (call_chain.empty()) return;
    channel_ = channel;
    channel_->BeginCallChain(batch, call_chain);
  }
  ~ActiveCallChain() {
    if (channel_ != nullptr) channel_->EndCallChain(batch_);
  }
  ActiveCallChain(const ActiveCallChain&) = delete;
  ActiveCallChain& operator=(const ActiveCallChain&) = delete;

 private:
  std::shared_ptr<ServiceChannel> channel_;  // null if there is nothing to end
  const int64_t batch_;
};

}  // namespace pytriton
