// More of the stand-in for the server: requests of the backend's own to models, and loading.
//
// It aborts where the backend breaks a rule: deletes a request that the server has, reads a response that it has
// deleted. The leak checker finds what it does not delete.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "triton/api.h"

struct TRITONSERVER_InferenceRequest {
  struct Input {
    TRITONSERVER_DataType datatype;
    std::vector<int64_t> shape;
    std::string data;            // as it was when the request was sent
    const char* base = nullptr;  // where it lies
  };

  // Whether it still lies there.
  bool IsUntouched() const;

  std::string model;
  std::string id;
  uint32_t flags = 0;
  std::string correlation;
  std::map<std::string, std::string> parameters;
  std::map<std::string, Input> inputs;
  std::vector<std::string> outputs;
  std::atomic<bool> cancelled{false};
  std::atomic<bool> at_server{false};

  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  void* allocator_userp = nullptr;
  TRITONSERVER_InferenceRequestReleaseFn_t release = nullptr;
  void* release_userp = nullptr;
  TRITONSERVER_InferenceResponseCompleteFn_t respond = nullptr;
  void* respond_userp = nullptr;
};

namespace fake_server {

struct Output {
  std::string name;
  TRITONSERVER_DataType datatype;
  std::vector<int64_t> shape;
  std::string data;
};

// Serves a request, now or later, from any thread: any number of `Respond`, the last of them final, and one `Release`.
using Serve = std::function<void(TRITONSERVER_InferenceRequest* request)>;
void AddModel(const std::string& name, Serve serve);
void Respond(TRITONSERVER_InferenceRequest* request, const std::vector<Output>& outputs, bool final);
void RespondError(TRITONSERVER_InferenceRequest* request, TRITONSERVER_Error_Code code, const std::string& message);
void End(TRITONSERVER_InferenceRequest* request);
void Release(TRITONSERVER_InferenceRequest* request);

// Requests that the backend has made and not deleted.
int64_t Requests();

}  // namespace fake_server
