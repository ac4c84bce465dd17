// Loads and unloads models for workers, each in its own thread, since it may take long.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "triton/api.h"
#include "wire/service.h"

namespace pytriton {

class ModelControl {
 public:
  ModelControl() = default;
  ~ModelControl();
  ModelControl(const ModelControl&) = delete;
  ModelControl& operator=(const ModelControl&) = delete;

  // Runs `work` in a thread; it must not throw. Returns false if the system cannot create one.
  bool Start(std::function<void()> work);

  // Performs the operation; returns whether the model is ready if that was queried. `data` is the data of the message.
  // Throws TritonError.
  static bool Do(TRITONSERVER_Server* server, const ModelMessage& message, const char* data);

 private:
  struct Task {
    std::atomic<bool> done{false};
    std::thread thread;
  };

  std::mutex mutex_;
  std::list<Task> tasks_;
};

}  // namespace pytriton
