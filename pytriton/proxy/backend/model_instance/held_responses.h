// Final responses that are sent once their requests have been released.
//
// Workaround for Triton (traces): when a front end has a request's final response, one of its threads ends the
// request's trace, while the backend still reports the request's statistics and its end to the same trace. With every
// request traced, that crashes the server within seconds of load.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model_instance/batch.h"
#include "triton/api.h"

namespace pytriton {

// Holds the responses passed to `SendFinal` in this thread until it is destroyed.
class HeldResponses {
 public:
  // Does nothing unless the batch is traced, or if the model has a response cache (`cached_output` is not empty): that
  // may look at the request when the response is sent.
  HeldResponses(const Batch& batch, const std::string& cached_output);
  // The same for requests that do not form a batch.
  HeldResponses(const std::vector<TRITONBACKEND_Request*>& requests, const std::string& cached_output);
  ~HeldResponses();
  HeldResponses(const HeldResponses&) = delete;
  HeldResponses& operator=(const HeldResponses&) = delete;

 private:
  HeldResponses(bool is_traced, const std::string& cached_output);

  friend void SendFinal(TRITONBACKEND_Response* response, TRITONSERVER_Error* error);
  friend void SendFinal(TRITONBACKEND_ResponseFactory* factory);

  const bool active_;
  std::vector<std::pair<TRITONBACKEND_Response*, TRITONSERVER_Error*>> responses_;
  std::vector<TRITONBACKEND_ResponseFactory*> ends_;
};

// Sends a request's last response, whose error is null unless it has failed, and deletes both.
void SendFinal(TRITONBACKEND_Response* response, TRITONSERVER_Error* error);
// Ends a request without a response, and deletes its factory.
void SendFinal(TRITONBACKEND_ResponseFactory* factory);

}  // namespace pytriton
