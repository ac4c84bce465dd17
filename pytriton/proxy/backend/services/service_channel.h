// The backend's end of a model instance's service channel: what a worker asks of the server, and the replies. A Unix
// SEQPACKET socket beside the one of the batches, and an arena for each direction, made when it is first used.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "services/call_chain.h"
#include "services/inference_request.h"
#include "services/metrics.h"
#include "services/model_control.h"
#include "transport/arena.h"
#include "transport/doorbell.h"
#include "triton/api.h"
#include "wire/service.h"

namespace pytriton {

// What all channels of the backend share.
struct ServiceContext {
  FileDescriptor poll;  // the epoll instance of the thread that receives
  WakeFlag wake_flag;   // where it sleeps at busy times
  OutputAllocator allocator;
  MetricFamilies families;
  Capacities capacities;
  ModelControl* models = nullptr;  // for the thread that receives
  std::function<void(const std::shared_ptr<Arena>&)> on_arena;
};

class ServiceChannel : public std::enable_shared_from_this<ServiceChannel> {
 public:
  // `number` is what the thread that receives knows it by.
  ServiceChannel(std::shared_ptr<ServiceContext> context, int64_t number, FileDescriptor socket,
                 TRITONSERVER_Server* server, std::string model, int64_t version);

  // Of the instance. Says how many batches its worker takes at a time.
  void SetCapacity(int64_t capacity);
  // Says who waits for a batch, `batch` being its sequence, or 0 where there is only one at a time. Not needed where
  // nobody does.
  void Began(int64_t batch, const CallChain& call_chain);
  void Ended(int64_t batch);
  // Ends the channel, and cancels what is in flight.
  void Close();

  // Of the thread that receives.
  int socket() const { return socket_.get(); }
  // Does what the worker asks. Returns whether it is still there.
  bool Receive();
  // Ends the channel, and takes the worker's metrics away.
  void Retire();
  // Goes on sending.
  void Flush();

  // Of what is in flight; from any thread.
  TRITONSERVER_Server* server() const { return server_; }
  TRITONSERVER_ResponseAllocator* allocator() const { return context_->allocator.get(); }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  void Add(int64_t number, InferenceRequest* inference);
  void Remove(int64_t number);
  void ReleaseMessage(int64_t offset) { worker_arena_.Release(offset); }
  // Returns whether the worker has got it, and with it the outputs' blocks.
  bool Reply(int64_t number, const InferenceReplyMessage& message);

 private:
  void Handle(const Notification& notification, FileDescriptor file);
  void Open(const Notification& notification, FileDescriptor file);
  void Call(const Notification& notification);
  void Cancel(int64_t number);
  void DoWithModel(const Notification& notification);
  void DoWithMetric(const Notification& notification);
  void Fail(int64_t number, TRITONSERVER_Error_Code code, const std::string& message);
  bool Send(const Notification& notification);
  bool SendNow(const Notification& notification);
  void Want(bool writable);
  CallChain CallersOfBatch(int64_t batch);

  const std::shared_ptr<ServiceContext> context_;
  const int64_t number_;
  const FileDescriptor socket_;
  TRITONSERVER_Server* const server_;
  const std::string model_;
  const int64_t version_;
  std::shared_ptr<Arena> arena_;  // these two, once the worker has opened the channel
  PeerArena worker_arena_;
  Metrics metrics_;
  std::atomic<bool> closed_{false};
  std::mutex callers_mutex_;
  int64_t capacity_ = 0;
  std::map<int64_t, CallChain> call_chain_;  // by batch
  std::mutex calls_mutex_;
  std::map<int64_t, InferenceRequest*> calls_;
  std::mutex send_mutex_;
  std::deque<Notification> unsent_;
  Doorbell doorbell_;  // in the arena, with that
};

}  // namespace pytriton
