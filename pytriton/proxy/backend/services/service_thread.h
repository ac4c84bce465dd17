// What workers ask of the server beside their batches: one thread that receives it for all instances of the backend.
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
  // `on_arena` hears of each arena, whose memory is to be given back now and then.
  explicit ServiceThread(std::function<void(const std::shared_ptr<Arena>&)> on_arena);
  // Waits a while for what is in flight.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  // Makes a channel for an instance of a model; `worker_end` is for its worker. The channel ends when the instance lets
  // go of it.
  std::shared_ptr<ServiceChannel> Open(TRITONSERVER_Server* server, const std::string& model, int64_t version,
                                       FileDescriptor* worker_end);

 private:
  void Run();
  std::shared_ptr<ServiceChannel> Find(int64_t number);

  const std::shared_ptr<ServiceContext> context_;
  ModelControl models_;
  FileDescriptor stop_;
  std::mutex mutex_;  // of what follows
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<ServiceChannel>> channels_;
  std::thread thread_;
};

}  // namespace pytriton
