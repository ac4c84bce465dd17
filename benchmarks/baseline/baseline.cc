// Responds to each request with its inputs, in the thread that Triton calls: no model in Triton can be faster. An output
// has the name of its input, but with "y" as the first letter.
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "triton/api.h"

namespace {

struct ErrorDeleter {
  void operator()(TRITONSERVER_Error* error) const { TRITONSERVER_ErrorDelete(error); }
};
using Error = std::unique_ptr<TRITONSERVER_Error, ErrorDeleter>;

#define RETURN_IF_ERROR(call) \
  if (TRITONSERVER_Error* error = (call)) return error

TRITONSERVER_Error* CopyInput(TRITONBACKEND_Input* input, TRITONBACKEND_Response* response) {
  const char* name = nullptr;
  TRITONSERVER_DataType datatype;
  const int64_t* shape = nullptr;
  uint32_t rank = 0;
  uint64_t size = 0;
  uint32_t parts = 0;
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &rank, &size, &parts));
  std::string output_name = name;
  output_name[0] = 'y';
  TRITONBACKEND_Output* output = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, output_name.c_str(), datatype, shape, rank));
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  void* target = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &target, size, &memory_type, &memory_id));
  for (uint32_t part = 0; part < parts; ++part) {
    const void* source = nullptr;
    uint64_t part_size = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, part, &source, &part_size, &memory_type, &memory_id));
    std::memcpy(target, source, part_size);
    target = static_cast<char*>(target) + part_size;
  }
  return nullptr;
}

TRITONSERVER_Error* CopyInputs(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  uint32_t count = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = nullptr;
    RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    RETURN_IF_ERROR(CopyInput(input, response));
  }
  return nullptr;
}

uint64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

extern "C" TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                                  TRITONBACKEND_Request** requests,
                                                                  const uint32_t request_count) {
  const uint64_t batch_start_ns = Now();
  for (uint32_t index = 0; index < request_count; ++index) {
    const uint64_t start_ns = Now();
    TRITONBACKEND_Response* response = nullptr;
    Error error(TRITONBACKEND_ResponseNew(&response, requests[index]));
    if (!error) {
      Error failure(CopyInputs(requests[index], response));
      error.reset(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failure.get()));
    }
    const uint64_t end_ns = Now();
    error.reset(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], !error, start_ns, start_ns,
                                                            end_ns, end_ns));
    error.reset(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  const uint64_t end_ns = Now();
  Error error(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, request_count, batch_start_ns, batch_start_ns,
                                                               end_ns, end_ns));
  return nullptr;
}
