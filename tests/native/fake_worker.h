// A worker in C++, as far as the backend can tell: listens, shakes hands, and responds to batches.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fake_doorbell.h"
#include "transport/arena.h"
#include "wire/inference.h"
#include "wire/notification.h"
#include "wire/registration.h"

namespace fake_worker {

// A batch that a worker has been given.
struct Taken {
  bool is_cancelled(size_t request) const { return __atomic_load_n(data + request, __ATOMIC_ACQUIRE) != 0; }
  int64_t rows(size_t request) const { return batch.rows.empty() ? 1 : batch.rows[request]; }

  int64_t sequence = 0;
  int64_t offset = 0;
  int64_t size = 0;
  pytriton::BatchMessage batch;
  const char* data = nullptr;
};

// Responses to send, which may be to requests of several batches.
class Reply {
 public:
  // A response whose output n is input n.
  Reply& Echo(const Taken& taken, size_t request, bool final = true);
  // A response that is made elsewhere; its tensors lie in `data`, if in anything.
  Reply& Say(pytriton::ResponseEntry response, const std::string& data = "");
  Reply& Fail(const Taken& taken, size_t request, const std::string& message, bool final = true);
  Reply& End(const Taken& taken, size_t request);

  const pytriton::ResponsesMessage& responses() const { return responses_; }
  // A whole message.
  std::string message() const;

 private:
  pytriton::ResponsesMessage responses_;
  std::string data_;
};

// What a worker has of one connection.
class WorkerEnd {
 public:
  // `files` came with the hello: the backend's arena, and the end of a service channel where there is one. `doorbell`
  // is the offset of the one that is used, or 0: batches are taken there, or come over the socket and are
  // `acknowledged` there.
  WorkerEnd(pytriton::FileDescriptor socket, std::vector<pytriton::FileDescriptor> files, int64_t doorbell,
            bool acknowledged);

  // The next batch, once it is there; nothing when the other side is gone, or when none came in time.
  std::optional<Taken> Take(int timeout_ms = -1);
  // False when the other side is gone, as with all that sends.
  bool Send(const Reply& reply) { return SendMessage(pytriton::NotificationKind::kResponses, 0, reply.message()); }
  bool SendMessage(pytriton::NotificationKind kind, int64_t sequence, const std::string& message);
  bool Notify(const pytriton::Notification& notification);
  // Whether the last `Take` has found that the other side is gone.
  bool gone() const { return gone_; }
  void Acknowledge() { acknowledgements_->Acknowledge(); }
  void Release(const Taken& taken) const { peer_.Release(taken.offset); }
  void HangUp() const { shutdown(socket_.get(), SHUT_RDWR); }

  pytriton::Arena& arena() { return arena_; }
  const pytriton::PeerArena& peer() const { return peer_; }

 private:
  std::optional<pytriton::Notification> NextNotification(int timeout_ms);
  bool HasEnded() const;

  const pytriton::FileDescriptor socket_;
  std::vector<pytriton::FileDescriptor> files_;
  const pytriton::PeerArena peer_;
  pytriton::Arena arena_;
  std::optional<Doorbell> doorbell_;
  std::optional<Doorbell> acknowledgements_;
  bool gone_ = false;
};

// What is done about a connection, which ends with it; in a thread of its own.
using Session = std::function<void(WorkerEnd* worker_end)>;

// What a worker in sequential mode does about a batch.
struct Served {
  std::string message;                                 // with its data
  std::optional<pytriton::Notification> notification;  // in place of the one that tells where the message lies
  bool hang_up = false;                                // instead of answering
};

using Serve = std::function<Served(const pytriton::BatchMessage& batch, const char* data)>;

// One batch at a time. Keeps the last `kept` batches, checks before it releases them that they are as they came, and
// does so in a thread of its own.
Session Sequential(Serve serve, size_t kept = 0);

// A whole message.
std::string Whole(const pytriton::ResultMessage& result, const std::string& data);

// A result in which output n is input n, which lies in `DataOf` the batch.
pytriton::ResultMessage EchoOf(const pytriton::BatchMessage& batch);
// The data of a batch's tensors.
std::string DataOf(const pytriton::BatchMessage& batch, const char* data);
Served Echo(const pytriton::BatchMessage& batch, const char* data);

class Worker {
 public:
  // `socket` is where to listen. Without a session, the worker_ends are for whoever asks for them.
  Worker(const std::string& socket, Session session, bool at_doorbell = false, bool acknowledged = false);
  ~Worker();

  int64_t connections() const { return connections_; }
  // That of the latest connection, once there is one.
  WorkerEnd& worker_end();
  // Gives back what was released of all results, at once.
  void Trim();

 private:
  void Listen();
  void Connect(pytriton::FileDescriptor connected);

  const Session session_;
  const bool at_doorbell_;
  const bool acknowledged_;
  pytriton::FileDescriptor listener_;
  std::atomic<int64_t> connections_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::vector<std::unique_ptr<WorkerEnd>> worker_ends_;
  std::vector<std::thread> threads_;
  std::thread listening_;
};

}  // namespace fake_worker
