// Messages of any kind, made up and compared.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <variant>

#include "peer_codecs.h"
#include "wire/inference.h"
#include "wire/notification.h"
#include "wire/registration.h"
#include "wire/service.h"

namespace pytriton {

using Message = std::variant<BatchMessage, ResultMessage, RegistrationMessage, AdmissionMessage, ResponsesMessage,
                             InferenceCallMessage, InferenceReplyMessage, LogMessage, ModelMessage, MetricMessage>;

constexpr int kMessageKinds = std::variant_size_v<Message>;

// `kind` is an index into Message. Its tensors lie within `data_size` bytes of data.
Message RandomMessage(int kind, int64_t data_size, std::mt19937_64* random);

bool Equal(const Message& a, const Message& b);

// The message without its data.
std::string EncodeMessage(const Message& message);

// `size` includes the data. Throws ProtocolError.
Message DecodeMessage(int kind, const char* data, int64_t size);

}  // namespace pytriton
