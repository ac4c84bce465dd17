// A worker in C++, as far as the backend can tell: listens, shakes hands, and answers batches.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "arena.h"
#include "protocol.h"

namespace fake_worker {

// What a worker does about a batch.
struct Answer {
  std::string message;                 // with its data
  std::optional<pytriton::Bell> bell;  // in place of the one that tells where the message lies
  bool hang_up = false;                // instead of answering
};

using Serve = std::function<Answer(const pytriton::BatchMessage& batch, const char* data)>;

// A whole message.
std::string Whole(const pytriton::ResultMessage& result, const std::string& data);

// Output n is input n.
pytriton::ResultMessage EchoOf(const pytriton::BatchMessage& batch);
// The data of a batch's tensors.
std::string DataOf(const pytriton::BatchMessage& batch, const char* data);
Answer Echo(const pytriton::BatchMessage& batch, const char* data);

class Worker {
 public:
  // `socket` is where to listen. Each connection keeps the last `kept` batches, checks before it releases them that
  // they are as they came, and does so in a thread of its own.
  Worker(const std::string& socket, Serve serve, size_t kept = 0);
  ~Worker();

  int64_t connections() const { return connections_; }
  // Gives back what was released of all results, at once.
  void Trim();

 private:
  void Listen();
  void Connect(pytriton::FileDescriptor connected);

  const Serve serve_;
  const size_t kept_;
  pytriton::FileDescriptor listener_;
  std::atomic<int64_t> connections_{0};
  std::mutex mutex_;
  bool closing_ = false;
  std::vector<int> open_;  // sockets of the living connections
  std::vector<std::weak_ptr<pytriton::Arena>> arenas_;
  std::vector<std::thread> threads_;
  std::thread listening_;
};

}  // namespace fake_worker
