#include "messages.h"

#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pytriton {

namespace {

constexpr int64_t kDeviceLocationSize = sizeof(DeviceLocation);

class Generator {
 public:
  Generator(int64_t data_size, std::mt19937_64* random) : data_size_(data_size), random_(*random) {}

  Message Make(int kind) {
    switch (kind) {
      case 0:
        return Batch();
      case 1:
        return Result();
      case 2:
        return RegistrationMessage{Text(), Text(), Integer(), Text(), Text()};
      case 3:
        return AdmissionMessage{Text(),    Integer(), Chance(), Chance(), static_cast<ExecutionMode>(1 + Below(3)),
                                Integer(), Text(),    Texts(),  Texts()};
      case 4:
        return Responses();
      case 5:
        return Call();
      case 6:
        return Reply();
      case 7:
        return LogMessage{Integer(), Integer(), Text(), Text()};
      case 8:
        return Model();
      case 9:
        return Metric();
      default:
        throw std::invalid_argument("no such kind of message");
    }
  }

 private:
  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  bool Chance() { return Below(2) == 0; }

  int64_t Integer() {
    constexpr int64_t kSpecial[] = {0, 1, -1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    return Chance() ? kSpecial[Below(5)] : static_cast<int64_t>(random_());
  }

  std::string Text() {
    std::string text(Chance() ? Below(4) : Below(40), '\0');
    for (char& c : text) c = static_cast<char>(Chance() ? 'a' + Below(26) : Below(256));
    return text;
  }

  std::vector<std::string> Texts() {
    std::vector<std::string> texts(Below(5));
    for (std::string& text : texts) text = Text();
    return texts;
  }

  std::vector<int64_t> Integers(int64_t count) {
    std::vector<int64_t> integers(count);
    for (int64_t& integer : integers) integer = Integer();
    return integers;
  }

  TensorLocation OneTensor() {
    if (Below(4) == 0) return TensorLocation();
    const int64_t offset = Below(data_size_ + 1);
    return {offset, Below(data_size_ - offset + 1), Integers(Below(5))};
  }

  bool HasRoomForDevices() const { return data_size_ >= kDeviceLocationSize; }

  TensorLocation OneDeviceTensor() {
    return {Below(data_size_ - kDeviceLocationSize + 1), Integer(), Integers(Below(5))};
  }

  std::vector<TensorColumn> Columns(int64_t request_count) {
    std::vector<TensorColumn> columns(Below(4));
    for (TensorColumn& column : columns) {
      column.position = Integer();
      column.datatype = Integer();
      column.place = static_cast<Place>(Below(HasRoomForDevices() ? 4 : 3));
      for (int64_t i = 0; i < (column.is_stacked() ? 1 : request_count); ++i) {
        column.tensors.push_back(column.place == Place::kOnDevice ? OneDeviceTensor() : OneTensor());
      }
    }
    return columns;
  }

  RequestMetadata OneDetails() {
    RequestMetadata metadata;
    metadata.id = Text();
    metadata.all_outputs = Chance();
    if (!metadata.all_outputs) metadata.outputs = Integers(Below(4));
    metadata.parameters = Parameters(Below(4));
    if (Chance()) {
      RequestOptions& options = metadata.options;
      if (Chance()) {
        options.correlation_id = Integer();
      } else {
        options.correlation_string = Text();
      }
      for (const auto number : RequestOptions::Numbers()) options.*number = Integer();
      options.trace_context = Text();
    }
    return metadata;
  }

  std::vector<Parameter> Parameters(int64_t count) {
    std::vector<Parameter> parameters;
    for (int64_t i = 0; i < count; ++i) {
      Parameter parameter;
      parameter.key = std::to_string(i) + Text();
      switch (Below(4)) {
        case 0:
          parameter.type = ParameterType::kString;
          parameter.text = Text();
          break;
        case 1:
          parameter.type = ParameterType::kBool;
          parameter.number = Below(2);
          break;
        case 2:
          parameter.type = ParameterType::kDouble;
          parameter.number = Integer();
          break;
        default:
          parameter.type = ParameterType::kInt;
          parameter.number = Integer();
      }
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  BatchMessage Batch() {
    BatchMessage message;
    message.request_count = Below(5);
    if (Chance()) message.rows = Integers(message.request_count);
    message.columns = Columns(message.request_count);
    message.wants_gpu = Chance();
    if (Chance()) {
      for (int64_t i = 0; i < message.request_count; ++i) message.metadata.push_back(OneDetails());
    }
    return message;
  }

  Failure OneFailure() { return {Integer(), Text(), Text(), Text()}; }

  ResultMessage Result() {
    ResultMessage message;
    message.request_count = Below(5);
    message.compute_start_ns = Integer();
    message.compute_end_ns = Integer();
    const int64_t failure_count = Below(3);
    for (int64_t i = 0; i < failure_count; ++i) message.failures.push_back({Integer(), OneFailure()});
    const int64_t parameters_count = Below(3);
    for (int64_t i = 0; i < parameters_count; ++i) message.parameters.push_back({i, Parameters(Below(3))});
    message.columns = Columns(message.request_count);
    return message;
  }

  ResponseEntry OneResponse() {
    ResponseEntry response;
    response.sequence = Integer();
    response.request = Integer();
    response.final = Chance();
    response.response = Chance();
    response.compute_start_ns = Integer();
    response.compute_end_ns = Integer();
    if (Chance()) response.failure = OneFailure();
    response.parameters = Parameters(Below(3));
    const int64_t output_count = Below(4);
    for (int64_t i = 0; i < output_count; ++i) response.outputs.push_back({Integer(), Integer(), OneTensor()});
    return response;
  }

  ResponsesMessage Responses() {
    ResponsesMessage message;
    const int64_t count = Below(4);
    for (int64_t i = 0; i < count; ++i) message.responses.push_back(OneResponse());
    return message;
  }

  InferenceCallMessage Call() {
    InferenceCallMessage message;
    message.model = Text();
    message.version = Integer();
    message.request_id = Text();
    message.flags = Integer();
    message.priority = Integer();
    message.timeout_us = Integer();
    if (Chance()) {
      message.correlation_number = Integer();
    } else {
      message.correlation_text = "x" + Text();
    }
    message.batch = Integer();
    message.preferred_gpu = Text();
    message.all_outputs = Chance();
    if (!message.all_outputs) message.outputs = Texts();
    message.parameters = Parameters(Below(4));
    const int64_t input_count = Below(4);
    for (int64_t i = 0; i < input_count; ++i) {
      if (HasRoomForDevices() && Chance()) {
        message.inputs.push_back({Text(), Integer() | kOnDevice, OneDeviceTensor()});
      } else {
        message.inputs.push_back({Text(), Integer() & ~kOnDevice, OneTensor()});
      }
    }
    message.trace_context = Text();
    return message;
  }

  InferenceReplyMessage Reply() {
    InferenceReplyMessage message;
    message.final = Chance();
    message.failed = Chance();
    if (message.failed) {
      message.code = Integer();
      message.message = Text();
    }
    message.response = Chance();
    if (!message.response) return message;
    message.model = Text();
    message.version = Integer();
    message.request_id = Text();
    message.parameters = Parameters(Below(4));
    const int64_t output_count = Below(4);
    for (int64_t i = 0; i < output_count; ++i) {
      message.outputs.push_back({Text(), Integer(), Integer(), Integer(), Integers(Below(4))});
    }
    return message;
  }

  ModelMessage Model() {
    ModelMessage message;
    message.command = static_cast<ModelOperation>(1 + Below(4));
    message.model = Text();
    message.version = Integer();
    message.config = Text();
    const int64_t file_count = Below(3);
    for (int64_t i = 0; i < file_count; ++i) {
      const int64_t offset = Below(data_size_ + 1);
      message.files.push_back({Text(), offset, Below(data_size_ - offset + 1)});
    }
    return message;
  }

  MetricMessage Metric() {
    MetricMessage message;
    message.command = static_cast<MetricOperation>(1 + Below(9));
    message.number = Integer();
    message.kind = Below(3);
    message.value = static_cast<double>(Integer());
    message.name = Text();
    message.description = Text();
    const int64_t label_count = Below(3);
    for (int64_t i = 0; i < label_count; ++i) message.labels.emplace_back(Text(), Text());
    const int64_t bucket_count = Below(3);
    for (int64_t i = 0; i < bucket_count; ++i) message.buckets.push_back(static_cast<double>(Integer()));
    const int64_t update_count = Below(3);
    for (int64_t i = 0; i < update_count; ++i) {
      const auto operation = static_cast<MetricOperation>(3 + Below(3));
      message.updates.push_back({Integer(), operation, static_cast<double>(Integer()), Integer()});
    }
    return message;
  }

  const int64_t data_size_;
  std::mt19937_64& random_;
};

bool Same(const BatchMessage& a, const BatchMessage& b) {
  return a.request_count == b.request_count && a.rows == b.rows && a.columns == b.columns && a.metadata == b.metadata &&
         a.wants_gpu == b.wants_gpu;
}

bool Same(const ResultMessage& a, const ResultMessage& b) {
  return a.request_count == b.request_count && a.compute_start_ns == b.compute_start_ns &&
         a.compute_end_ns == b.compute_end_ns && a.failures == b.failures && a.parameters == b.parameters &&
         a.columns == b.columns;
}

bool Same(const RegistrationMessage& a, const RegistrationMessage& b) {
  return a.binding == b.binding && a.model == b.model && a.version == b.version && a.instance == b.instance &&
         a.config == b.config;
}

bool Same(const AdmissionMessage& a, const AdmissionMessage& b) {
  return a.socket == b.socket && a.ticket == b.ticket && a.batching == b.batching && a.decoupled == b.decoupled &&
         a.mode == b.mode && a.max_in_flight == b.max_in_flight && a.gpus == b.gpus && a.inputs == b.inputs &&
         a.outputs == b.outputs;
}

bool Same(const ResponsesMessage& a, const ResponsesMessage& b) { return a.responses == b.responses; }

bool Same(const InferenceCallMessage& a, const InferenceCallMessage& b) {
  return a.model == b.model && a.version == b.version && a.request_id == b.request_id && a.flags == b.flags &&
         a.priority == b.priority && a.timeout_us == b.timeout_us && a.correlation_number == b.correlation_number &&
         a.correlation_text == b.correlation_text && a.batch == b.batch && a.preferred_gpu == b.preferred_gpu &&
         a.all_outputs == b.all_outputs && a.outputs == b.outputs && a.parameters == b.parameters &&
         a.inputs == b.inputs && a.trace_context == b.trace_context;
}

bool Same(const InferenceReplyMessage& a, const InferenceReplyMessage& b) {
  return a.final == b.final && a.response == b.response && a.failed == b.failed && a.code == b.code &&
         a.message == b.message && a.model == b.model && a.version == b.version && a.request_id == b.request_id &&
         a.parameters == b.parameters && a.outputs == b.outputs;
}

bool Same(const LogMessage& a, const LogMessage& b) {
  return a.level == b.level && a.line == b.line && a.file == b.file && a.text == b.text;
}

bool Same(const ModelMessage& a, const ModelMessage& b) {
  return a.command == b.command && a.model == b.model && a.version == b.version && a.config == b.config &&
         a.files == b.files;
}

bool Same(const MetricMessage& a, const MetricMessage& b) {
  return a.command == b.command && a.number == b.number && a.kind == b.kind && a.value == b.value && a.name == b.name &&
         a.description == b.description && a.labels == b.labels && a.buckets == b.buckets && a.updates == b.updates;
}

template <typename A, typename B>
bool Same(const A&, const B&) {
  return false;
}

}  // namespace

Message RandomMessage(int kind, int64_t data_size, std::mt19937_64* random) {
  return Generator(data_size, random).Make(kind);
}

bool Equal(const Message& a, const Message& b) {
  return std::visit([](const auto& first, const auto& second) { return Same(first, second); }, a, b);
}

std::string EncodeMessage(const Message& message) {
  MessageWriter writer;
  std::visit([&](const auto& each) { Encode(each, &writer); }, message);
  return writer.ToString();
}

Message DecodeMessage(int kind, const char* data, int64_t size) {
  MessageReader reader(data, size);
  switch (kind) {
    case 0:
      return DecodeBatch(&reader);
    case 1:
      return DecodeResult(&reader);
    case 2:
      return DecodeRegistration(&reader);
    case 3:
      return DecodeAdmission(&reader);
    case 4:
      return DecodeResponses(&reader);
    case 5:
      return DecodeCall(&reader);
    case 6:
      return DecodeReply(&reader);
    case 7:
      return DecodeLog(&reader);
    case 8:
      return DecodeModel(&reader, size);
    case 9:
      return DecodeMetric(&reader);
    default:
      throw std::invalid_argument("no such kind of message");
  }
}

}  // namespace pytriton
