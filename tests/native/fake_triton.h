// A stand-in for the server: as much of Triton's C API as the backend calls, over plain structs.
//
// It aborts where the backend breaks a rule of the API: answers a request after its final response, or not at all;
// answers one of a model that is not decoupled in parts; touches a request that it has released; loses an object (the
// leak checker's part). Like the server, it can be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "triton/api.h"

// The opaque types of the API.

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  std::string message;
};

struct TRITONSERVER_Message {
  std::string json;
};

struct TRITONBACKEND_Backend {
  void* state = nullptr;
};

struct TRITONBACKEND_BackendAttribute {
  bool parallel_instance_loading = false;
};

struct TRITONBACKEND_Model {
  std::string name;
  TRITONBACKEND_Backend* backend = nullptr;
  std::string folder;
  std::string config = "{}";
  uint64_t version = 1;
  void* state = nullptr;
};

struct TRITONBACKEND_ModelInstance {
  struct BatchStatistics {
    uint64_t rows;
    uint64_t times[4];  // exec start, compute start, compute end, exec end
  };

  std::string name;
  TRITONBACKEND_Model* model = nullptr;
  void* state = nullptr;
  int64_t succeeded = 0;
  int64_t failed = 0;
  std::vector<BatchStatistics> batches;
};

struct TRITONBACKEND_Input {
  // Exactly as long as it says, and on the heap: the address sanitizer sees whoever reads beyond.
  struct Buffer {
    std::vector<char> data;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    std::vector<char> later = {};  // what a client has in its shared memory once the data were read; nothing: the same
    bool is_read = false;
  };

  TRITONBACKEND_Input(std::string name, TRITONSERVER_DataType datatype, std::vector<int64_t> shape,
                      const std::string& data)
      : name(std::move(name)), datatype(datatype), shape(std::move(shape)) {
    buffers.push_back({{data.begin(), data.end()}});
  }

  // The data, in one piece.
  std::string data() const;
  // Cuts the data into buffers of these sizes and one of the rest.
  void Split(const std::vector<size_t>& sizes);

  std::string name;
  TRITONSERVER_DataType datatype;
  std::vector<int64_t> shape;
  std::vector<Buffer> buffers;
};

struct TRITONBACKEND_Output {
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<char> data;
  TRITONBACKEND_Request* request = nullptr;

  std::string bytes() const { return {data.begin(), data.end()}; }
};

struct TRITONBACKEND_Response {
  TRITONBACKEND_Request* request = nullptr;
  std::map<std::string, TRITONBACKEND_Output> outputs;
  std::map<std::string, std::string> parameters;  // as text
};

struct TRITONBACKEND_ResponseFactory {
  TRITONBACKEND_Request* request = nullptr;
};

struct TRITONBACKEND_Request {
  struct Parameter {
    std::string key;
    TRITONSERVER_ParameterType type;
    std::string text;   // of a string
    int64_t value = 0;  // the bits of any other
  };

  std::string id;
  std::vector<TRITONBACKEND_Input> inputs;
  std::vector<std::string> requested_outputs;
  std::vector<Parameter> parameters;
  TRITONSERVER_MemoryType output_memory = TRITONSERVER_MEMORY_CPU;
  bool decoupled = false;  // as its model
  uint64_t timeout_us = 0;
  uint64_t correlation_id = 0;
  std::string correlation_string;  // in its place, unless it is empty
  uint32_t flags = 0;
  uint64_t priority = 0;
  uint64_t trace = 0;  // its number; 0 where it is not traced
  std::string trace_context;
  bool with_traced = false;            // whether a request of its batch is traced
  bool reschedulable = false;          // as its model
  std::atomic<bool> cancelled{false};  // by the client

  // What came of it. To be read in a `fake_triton::WaitUntil`, or once `released` was seen there.
  bool has_response = false;  // which may not be sent yet
  bool answered = false;      // for good: no more responses follow
  bool released = false;
  bool rescheduled = false;
  bool failed = false;
  TRITONSERVER_Error_Code error_code = TRITONSERVER_ERROR_UNKNOWN;
  std::string error;
  std::map<std::string, TRITONBACKEND_Output> outputs;                 // of the last response
  std::map<std::string, std::string> response_parameters;              // likewise
  std::vector<std::map<std::string, TRITONBACKEND_Output>> responses;  // those without an error
};

namespace fake_triton {

// Of TRITONBACKEND_ApiVersion; 1.19 unless it is set.
void SetApiVersion(uint32_t major, uint32_t minor);

// Waits until a condition holds, which looks at what has come of requests and instances. Returns whether it did in
// time.
bool WaitUntil(const std::function<bool()>& condition, std::chrono::milliseconds timeout = std::chrono::seconds(20));

// Called in front of each response, until it is set to nothing.
void SetResponseHook(std::function<void()> hook);

// What was logged since the last call, one entry a line.
std::string TakeLog();

// Ends the program unless the backend keeps a rule of the API.
void Require(bool keeps, const char* rule);

}  // namespace fake_triton
