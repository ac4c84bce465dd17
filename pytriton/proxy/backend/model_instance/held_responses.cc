#include "model_instance/held_responses.h"

#include <algorithm>

#include "triton/error.h"

namespace pytriton {

namespace {

thread_local HeldResponses* held = nullptr;

void SendNow(TRITONBACKEND_Response* response, TRITONSERVER_Error* error) {
  LogIfError(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error),
             "cannot send a response");
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

void SendNow(TRITONBACKEND_ResponseFactory* factory) {
  LogIfError(TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
             "cannot end a response");
  LogIfError(TRITONBACKEND_ResponseFactoryDelete(factory), "cannot delete a response factory");
}

}  // namespace

HeldResponses::HeldResponses(const Batch& batch, const std::string& cached_output)
    : HeldResponses(batch.is_traced(), cached_output) {}

HeldResponses::HeldResponses(const std::vector<TRITONBACKEND_Request*>& requests, const std::string& cached_output)
    : HeldResponses(std::any_of(requests.begin(), requests.end(), [](auto* each) { return TraceOf(each) != nullptr; }),
                    cached_output) {}

HeldResponses::HeldResponses(bool is_traced, const std::string& cached_output)
    : active_(is_traced && cached_output.empty() && held == nullptr) {
  if (active_) held = this;
}

HeldResponses::~HeldResponses() {
  if (!active_) return;
  held = nullptr;
  for (const auto& [response, error] : responses_) SendNow(response, error);
  for (TRITONBACKEND_ResponseFactory* factory : ends_) SendNow(factory);
}

void SendFinal(TRITONBACKEND_Response* response, TRITONSERVER_Error* error) {
  if (held == nullptr) return SendNow(response, error);
  held->responses_.emplace_back(response, error);
}

void SendFinal(TRITONBACKEND_ResponseFactory* factory) {
  if (held == nullptr) return SendNow(factory);
  held->ends_.push_back(factory);
}

}  // namespace pytriton
