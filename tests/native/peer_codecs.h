// The other half of each codec of the backend: what the worker encodes, and what it decodes; and comparisons of
// messages.
#pragma once

#include "wire/inference.h"
#include "wire/registration.h"
#include "wire/service.h"

namespace pytriton {

BatchMessage DecodeBatch(MessageReader* reader);
void Encode(const ResultMessage& message, MessageWriter* writer);
void Encode(const ResponsesMessage& message, MessageWriter* writer);
RegistrationMessage DecodeRegistration(MessageReader* reader);
void Encode(const AdmissionMessage& message, MessageWriter* writer);
void Encode(const InferenceCallMessage& message, MessageWriter* writer);
InferenceReplyMessage DecodeReply(MessageReader* reader);
void Encode(const LogMessage& message, MessageWriter* writer);
void Encode(const ModelMessage& message, MessageWriter* writer);
void Encode(const MetricMessage& message, MessageWriter* writer);

bool operator==(const RequestOptions& a, const RequestOptions& b);
bool operator==(const RequestMetadata& a, const RequestMetadata& b);
bool operator==(const Failure& a, const Failure& b);
bool operator==(const RequestFailure& a, const RequestFailure& b);
bool operator==(const ResponseParameters& a, const ResponseParameters& b);
bool operator==(const ResponseOutput& a, const ResponseOutput& b);
bool operator==(const ResponseEntry& a, const ResponseEntry& b);
bool operator==(const InferenceCallInput& a, const InferenceCallInput& b);
bool operator==(const MetricUpdate& a, const MetricUpdate& b);
bool operator==(const InferenceReplyOutput& a, const InferenceReplyOutput& b);
bool operator==(const ModelMessage::File& a, const ModelMessage::File& b);
bool operator==(const TensorLocation& a, const TensorLocation& b);
bool operator==(const TensorColumn& a, const TensorColumn& b);
bool operator==(const Parameter& a, const Parameter& b);

}  // namespace pytriton
