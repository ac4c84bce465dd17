// A worker's request to a model of the server. Its inputs lie in the worker's arena, its outputs in the backend's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "transport/arena.h"
#include "triton/api.h"
#include "wire/service.h"

namespace pytriton {

class ServiceChannel;
struct OutputBlock;

// Allocates the outputs of all such requests.
class OutputAllocator {
 public:
  OutputAllocator();
  ~OutputAllocator();
  OutputAllocator(const OutputAllocator&) = delete;
  OutputAllocator& operator=(const OutputAllocator&) = delete;

  TRITONSERVER_ResponseAllocator* get() const { return allocator_; }

 private:
  TRITONSERVER_ResponseAllocator* allocator_ = nullptr;
};

class InferenceRequest {
 public:
  // Sends the request. Responses, including the final one, are passed to the channel from any thread. `data` is the
  // data of `message`, which is released once Triton has released the request. Throws TritonError if the server refuses
  // the request.
  static void Start(const std::shared_ptr<ServiceChannel>& channel, int64_t number, const InferenceCallMessage& call,
                    const char* data, PeerBlock message, const std::string& call_chain);

  // Requests that the server cancel the request.
  void Cancel();

 private:
  InferenceRequest(std::shared_ptr<ServiceChannel> channel, int64_t number, PeerBlock message);
  ~InferenceRequest();
  InferenceRequest(const InferenceRequest&) = delete;
  InferenceRequest& operator=(const InferenceRequest&) = delete;

  void Prepare(const InferenceCallMessage& call, const char* data, const std::string& call_chain);
  void AddInput(const InferenceCallInput& input, const char* data);
  void SetCallbacks();
  void Respond(TRITONSERVER_InferenceResponse* response, bool final);
  void Drop();
  // Allocates an output in the memory of the preferred GPU. Returns whether that succeeded.
  bool AllocateOnDevice(int64_t size, OutputBlock* block, void** buffer, int64_t* device);

  static TRITONSERVER_Error* Query(TRITONSERVER_ResponseAllocator*, void* self, const char*, size_t*,
                                   TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id);
  static TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t size,
                                      TRITONSERVER_MemoryType, int64_t, void* self, void** buffer, void** output,
                                      TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id);
  static TRITONSERVER_Error* Release(TRITONSERVER_ResponseAllocator*, void*, void* output, size_t,
                                     TRITONSERVER_MemoryType, int64_t);
  friend class OutputAllocator;

  const std::shared_ptr<ServiceChannel> channel_;
  const int64_t number_;
  PeerBlock message_;  // in the channel's memory
  std::optional<cuda::GpuId> preferred_gpu_;
  TRITONSERVER_InferenceRequest* request_ = nullptr;
  std::atomic<int> users_{2};  // held by Triton until it releases the request, and until the final response
};

}  // namespace pytriton
