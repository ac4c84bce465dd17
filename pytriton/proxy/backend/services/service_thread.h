// The thread that handles the calls of all workers, from the service channels of all instances of the backend.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "services/service_channel.h"
#include "transport/arena.h"
#include "triton/api.h"

namespace pytriton {

class ServiceThread {
 public:
  // `on_arena` is called with each new arena, whose free memory is to be trimmed.
  explicit ServiceThread(std::function<void(const std::shared_ptr<Arena>&)> on_arena);
  // Waits for a while for calls in flight.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  // Creates a channel for an instance of a model; `worker_end` is for its worker. The channel is closed when the
  // instance releases it.
  std::shared_ptr<ServiceChannel> Open(TRITONSERVER_Server* server, const std::string& model, int64_t version,
                                       FileDescriptor* worker_end);
  // Connects a channel for the controller's own requests to the socket on which it listens, unless there is one.
  // It stays open until the controller closes it, regardless of the models.
  void ConnectController(TRITONSERVER_Server* server, const std::string& path);

 private:
  std::shared_ptr<ServiceChannel> Add(FileDescriptor socket, TRITONSERVER_Server* server, const std::string& model,
                                      int64_t version);
  void Run();
  std::shared_ptr<ServiceChannel> Find(int64_t number);

  const std::shared_ptr<ServiceContext> context_;
  ModelControl models_;
  FileDescriptor stop_;
  std::mutex mutex_;  // guards the members below
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<ServiceChannel>> channels_;
  std::map<std::string, std::weak_ptr<ServiceChannel>> controllers_;  // by the path of the socket
  std::thread thread_;
};

}  // namespace pytriton
