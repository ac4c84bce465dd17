// Batches on their way through the backend, from Triton's requests to a worker that takes one at a time, and back:
// `data_path_test BEHAVIOUR`, or `--list`. Its sockets go to the current folder.
#include "data_path.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_server.h"

namespace data_path {

namespace {

using fake_worker::Answer;
using fake_worker::DataOf;
using fake_worker::Echo;
using fake_worker::EchoOf;
using fake_worker::Whole;
using pytriton::BatchMessage;
using pytriton::ResultMessage;
using pytriton::Tensor;

// A worker that looks at each batch before it echoes it. The looks happen in its thread, before the answer.
fake_worker::Serve Watched(std::function<void(const BatchMessage&, const char*)> look) {
  return [look = std::move(look)](const BatchMessage& batch, const char* data) {
    look(batch, data);
    return Echo(batch, data);
  };
}

void EqualShapesAreStacked() {
  std::mt19937_64 random(1);
  std::string expected;
  Model model("stacked", 1, true, Watched([&](const BatchMessage& batch, const char* data) {
                CHECK((batch.request_count == 3 && batch.rows == std::vector<int64_t>{1, 4, 2}));
                CHECK(batch.details.empty());
                CHECK(batch.columns.size() == 1 && batch.columns[0].stacked && batch.columns[0].tensors.size() == 1);
                const Tensor& tensor = batch.columns[0].tensors[0];
                CHECK((tensor.shape == std::vector<int64_t>{7, 3}));
                CHECK(reinterpret_cast<uintptr_t>(data + tensor.offset) % pytriton::kAlignment == 0);
                CHECK(std::string(data + tensor.offset, tensor.size) == expected);
              }));
  model.Load();
  auto batch = BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}),
                       model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {4, 3}, &random)}),
                       model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3}, &random)}));
  for (const auto& sent : batch) expected += sent->inputs[0].data();
  model.CheckServed(batch);
}

void DifferentShapesLieApart() {
  std::mt19937_64 random(2);
  Model model("ragged", 1, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(!batch.columns[0].stacked && batch.columns[0].tensors.size() == 2);
              }));
  model.Load();
  model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3}, &random)}),
                            model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 5}, &random)})));
  model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3}, &random)}),
                            model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3, 1}, &random)})));
  model.CheckServed(BatchOf(model.Request({Bytes("A", {1, 2}, {"a", std::string("\0b", 2)})}),
                            model.Request({Bytes("A", {1, 3}, {"", "", "longer than a few bytes"})})));
}

void EveryDatatypeComesBack() {
  std::mt19937_64 random(3);
  Model model("datatypes", 1, true, Echo);
  model.Load();
  for (int datatype = TRITONSERVER_TYPE_BOOL; datatype <= TRITONSERVER_TYPE_BF16; ++datatype) {
    if (datatype == TRITONSERVER_TYPE_BYTES) continue;
    const auto type = static_cast<TRITONSERVER_DataType>(datatype);
    model.CheckServed(BatchOf(model.Request({Numbers("A", type, {1, 5}, &random)}),
                              model.Request({Numbers("A", type, {3, 5}, &random)})));
  }
}

void BytesComeBack() {
  Model model("bytes", 1, true,
              Watched([](const BatchMessage& batch, const char*) { CHECK(batch.columns[0].stacked); }));
  model.Load();
  const std::string zeros("a\0\0", 3);
  model.CheckServed(BatchOf(model.Request({Bytes("A", {1, 2}, {"", zeros})}),
                            model.Request({Bytes("A", {2, 2}, {std::string(100000, 'x'), "", "", "\xff\xfe"})}),
                            model.Request({Bytes("A", {1, 2}, {"", ""})})));
}

void MissingInputsAreLeftOut() {
  std::mt19937_64 random(4);
  Model model("optional", 3, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(batch.columns.size() == 2);
                CHECK(batch.columns[0].stacked && batch.columns[0].position == 0);
                CHECK(!batch.columns[1].stacked && batch.columns[1].position == 2);
                CHECK(batch.columns[1].tensors[0].offset == -1 && batch.columns[1].tensors[1].offset >= 0);
              }));
  model.Load();
  model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}),
                            model.Request({Bytes("C", {2, 1}, {"in another", "order"}),
                                           Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3}, &random)})));
}

void PiecesAreJoined() {
  std::mt19937_64 random(5);
  Model model("pieces", 2, true, Echo);
  model.Load();
  for (size_t first = 0; first < 14; ++first) {
    auto numbers = Numbers("A", TRITONSERVER_TYPE_INT32, {2, 4}, &random);
    auto strings = Bytes("B", {2, 1}, {"abc", "defgh"});
    numbers.Split({first, 0, 3});
    strings.Split({first, 0, 1});
    auto whole = Numbers("A", TRITONSERVER_TYPE_INT32, {1, 4}, &random);
    model.CheckServed(BatchOf(model.Request({numbers, strings}), model.Request({whole, Bytes("B", {1, 1}, {"x"})})));
  }
}

void EmptyTensorsComeBack() {
  Model model("empty", 2, true, Echo);
  model.Load();
  const TRITONBACKEND_Input numbers("A", TRITONSERVER_TYPE_FP64, {2, 0}, "");
  TRITONBACKEND_Input no_buffers = numbers;
  no_buffers.buffers.clear();
  model.CheckServed(BatchOf(model.Request({numbers, Bytes("B", {2, 0}, {})})));
  model.CheckServed(BatchOf(model.Request({numbers, Bytes("B", {2, 1}, {"", ""})}),
                            model.Request({no_buffers, Bytes("B", {2, 0}, {})})));
  model.CheckServed(BatchOf(model.Request({numbers}), model.Request({no_buffers})));
}

void ModelsWithoutBatchesHaveNoRows() {
  std::mt19937_64 random(6);
  Model model("single", 2, false, Watched([](const BatchMessage& batch, const char*) {
                CHECK(batch.rows.empty() && batch.request_count == 1);
              }));
  model.Load();
  model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {5}, &random)})));
  model.CheckServed(
      BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3, 4}, &random), Bytes("B", {1}, {"scalar"})})));
}

void DetailsReachTheWorker() {
  std::mt19937_64 random(7);
  Model model("details", 3, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(batch.details.size() == 2);
                const pytriton::Details& details = batch.details[1];
                CHECK(batch.details[0].empty());
                CHECK(details.id == "id-7");
                CHECK((!details.all_outputs && details.outputs == std::vector<int64_t>{0, 2}));
                CHECK(details.parameters.size() == 4);
                CHECK(details.parameters[0].key == "text" && details.parameters[0].text == "h\xc3\xa9");
                CHECK(details.parameters[1].type == pytriton::ParameterType::kInt);
                CHECK(details.parameters[1].number == std::numeric_limits<int64_t>::min());
                CHECK(details.parameters[2].type == pytriton::ParameterType::kBool);
                CHECK(details.parameters[2].number == 1);
                double number;
                std::memcpy(&number, &details.parameters[3].number, sizeof(number));
                CHECK(details.parameters[3].type == pytriton::ParameterType::kDouble && number == 0.5);
              }));
  model.Load();
  const auto inputs = [&] {
    return std::vector<TRITONBACKEND_Input>{Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random),
                                            Numbers("B", TRITONSERVER_TYPE_FP32, {1, 3}, &random),
                                            Numbers("C", TRITONSERVER_TYPE_FP32, {1, 3}, &random)};
  };
  auto batch = BatchOf(model.Request(inputs()), model.Request(inputs()));
  TRITONBACKEND_Request& request = batch[1]->request;
  request.id = "id-7";
  request.requested_outputs = {"OUT_C", "OUT_A"};
  const double half = 0.5;
  int64_t half_bits;
  std::memcpy(&half_bits, &half, sizeof(half));
  request.parameters = {{"text", TRITONSERVER_PARAMETER_STRING, "h\xc3\xa9", 0},
                        {"int", TRITONSERVER_PARAMETER_INT, "", std::numeric_limits<int64_t>::min()},
                        {"bool", TRITONSERVER_PARAMETER_BOOL, "", 1},
                        {"double", TRITONSERVER_PARAMETER_DOUBLE, "", half_bits}};
  model.CheckServed(batch);
  CHECK(request.outputs.size() == 2);
}

void StatisticsAreReported() {
  std::mt19937_64 random(8);
  Model model("statistics", 1, true, [](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    result.compute_start_ns = 1000;
    result.compute_end_ns = 2000;
    if (batch.request_count == 2) result.failures.push_back({0, TRITONSERVER_ERROR_INTERNAL, "no", ""});
    return Answer{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  const auto request = [&](int64_t rows) {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {rows, 3}, &random)});
  };
  model.Execute(BatchOf(request(1), request(2), request(3)));
  model.Execute(BatchOf(request(1), request(4)));
  const TRITONBACKEND_ModelInstance& instance = *model.instance();
  CHECK(instance.succeeded == 4 && instance.failed == 1);
  CHECK(instance.batches.size() == 2);
  CHECK(instance.batches[0].rows == 6 && instance.batches[1].rows == 5);
  CHECK(instance.batches[0].times[1] == 1000 && instance.batches[0].times[2] == 2000);
  CHECK(instance.batches[0].times[0] <= instance.batches[0].times[3]);
}

void BadRequestsFailAlone() {
  std::mt19937_64 random(9);
  constexpr int64_t kHuge = int64_t{1} << 32;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Model model("bad", 2, true, Echo);
  model.Load();
  const auto good = [&] {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3}, &random), Bytes("B", {2, 1}, {"a", "b"})});
  };
  const auto strings = [](std::vector<int64_t> shape, const std::string& data) {
    return TRITONBACKEND_Input("B", TRITONSERVER_TYPE_BYTES, std::move(shape), data);
  };
  const auto numbers = [](std::vector<int64_t> shape, const std::string& data) {
    return TRITONBACKEND_Input("A", TRITONSERVER_TYPE_FP32, std::move(shape), data);
  };
  auto pieces = strings({1, 2}, Serialized({"ab", "cd"}) + "x");
  pieces.Split({2, 5});
  const std::vector<TRITONBACKEND_Input> bad = {
      strings({1, 1}, "abc"),                                      // cut off in a length
      strings({1, 1}, Serialized({"abc"}).substr(0, 6)),           // cut off in an element
      strings({1, 2}, Serialized({"abc"})),                        // too few elements
      strings({1, 1}, Serialized({"abc", "def"})),                 // too many
      strings({1, 1}, std::string("\xff\xff\xff\xff", 4) + "ab"),  // a length beyond everything
      strings({1, 1}, ""),
      strings({kHuge, kHuge}, ""),
      strings({kMax, 4}, Serialized({"abc"})),
      strings({1, -1}, Serialized({"abc"})),
      pieces,
      numbers({1, 3}, "eleven byte"),
      numbers({1, 3}, "thirteen byte"),
      numbers({kHuge, kHuge}, ""),
      numbers({kHuge, kHuge, 0}, ""),
      numbers({1, kMax / 2}, "abcd"),
      numbers({-1, -1}, "abcd"),
      {"A", TRITONSERVER_TYPE_INVALID, {1, 1}, "abcd"},
  };
  for (const TRITONBACKEND_Input& input : bad) {
    auto batch = BatchOf(good(), model.Request({input}), good());
    model.Execute(batch);
    model.CheckEchoed(*batch[0]);
    model.CheckEchoed(*batch[2]);
    CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "model 'bad': the data of input '" + input.name));
    CHECK(Contains(batch[1]->request.error, "does not match its shape and datatype"));
    model.Execute(BatchOf(model.Request({input})));
  }
  auto unknown = BatchOf(good(), model.Request({{"Z", TRITONSERVER_TYPE_UINT8, {1, 1}, "z"}}));
  model.Execute(unknown);
  model.CheckEchoed(*unknown[0]);
  CHECK(unknown[1]->failed_with(TRITONSERVER_ERROR_INVALID_ARG, "does not know the tensor 'Z'"));
  CHECK(model.connections() == 1);
}

void GpuMemoryIsRefused() {
  std::mt19937_64 random(10);
  Model model("gpu", 1, true, Echo);
  model.Load();
  const auto request = [&] { return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}); };
  auto batch = BatchOf(request(), request(), request(), request());
  batch[0]->request.inputs[0].buffers[0].type = TRITONSERVER_MEMORY_GPU;
  batch[1]->request.inputs[0].buffers[0].type = TRITONSERVER_MEMORY_CPU_PINNED;
  batch[2]->request.output_memory = TRITONSERVER_MEMORY_GPU;
  model.Execute(batch);
  CHECK(batch[0]->request.failed && Contains(batch[0]->request.error, "input 'A' lies in GPU memory"));
  model.CheckEchoed(*batch[1]);
  CHECK(batch[2]->failed_with(TRITONSERVER_ERROR_UNSUPPORTED, "output 'OUT_A' is wanted in GPU memory"));
  model.CheckEchoed(*batch[3]);
}

void EnvelopesReachTheWorker() {
  std::mt19937_64 random(21);
  Model model("envelopes", 1, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(batch.details.size() == 4);
                CHECK(batch.details[0].envelope.empty());
                const pytriton::Envelope& first = batch.details[1].envelope;
                CHECK(first.correlation_id == -1 && first.correlation_string.empty());
                CHECK(first.flags == 3 && first.priority == 2 && first.trace == 7);
                CHECK(first.timeout_us == 60'000'000);
                CHECK(batch.details[2].envelope.correlation_string == "s\xc3\xa9quence");
                CHECK(batch.details[2].envelope.correlation_id == 0);
                CHECK(batch.details[3].envelope.flags == 1);
              }));
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random), model.Request(&random));
  TRITONBACKEND_Request& first = batch[1]->request;
  first.correlation_id = std::numeric_limits<uint64_t>::max();
  first.flags = 3;
  first.priority = 2;
  first.timeout_us = 60'000'000;
  first.trace = 7;
  batch[2]->request.correlation_string = "s\xc3\xa9quence";
  batch[3]->request.flags = 1;
  model.CheckServed(batch);
}

std::vector<pytriton::Parameter> EveryParameter() {
  double half = 0.5;
  int64_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return {{"text", pytriton::ParameterType::kString, "h\xc3\xa9", 0},
          {"integer", pytriton::ParameterType::kInt, "", std::numeric_limits<int64_t>::min()},
          {"truth", pytriton::ParameterType::kBool, "", 1},
          {"number", pytriton::ParameterType::kDouble, "", bits}};
}

void ResponseParametersReachTheClient() {
  std::mt19937_64 random(22);
  std::vector<pytriton::ResponseParameters> said = {{1, EveryParameter()}};
  Model model("parameters", 1, true, [&](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    result.parameters = said;
    return Answer{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  model.CheckServed(batch);
  CHECK(batch[0]->request.response_parameters.empty());
  const std::map<std::string, std::string> wanted = {
      {"text", "h\xc3\xa9"}, {"integer", "-9223372036854775808"}, {"truth", "true"}, {"number", "0.500000"}};
  CHECK(batch[1]->request.response_parameters == wanted);
  said = {{0, {{"of no type", static_cast<pytriton::ParameterType>(9), "", 0}}}};
  auto typeless = BatchOf(model.Request(&random), model.Request(&random));
  model.Execute(typeless);
  CHECK(typeless[0]->failed_with(TRITONSERVER_ERROR_INTERNAL, "a parameter of an unknown type"));
  model.CheckEchoed(*typeless[1]);
  said = {{2, EveryParameter()}};
  auto beyond = BatchOf(model.Request(&random), model.Request(&random));
  model.Execute(beyond);
  CHECK(beyond[1]->failed_with(TRITONSERVER_ERROR_INTERNAL, "parameters of a response that is not there"));
}

void RequestsGoBackToTheServer() {
  std::mt19937_64 random(23);
  Model model("back", 1, true, [&](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    result.failures.push_back({1, pytriton::kReschedule, "", ""});
    return Answer{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random));
  batch[1]->request.reschedulable = true;
  model.Execute(batch);
  CHECK(batch[1]->request.rescheduled && !batch[1]->request.answered);
  model.CheckEchoed(*batch[0]);
  model.CheckEchoed(*batch[2]);
  CHECK(model.instance()->succeeded == 2 && model.instance()->failed == 0);
  auto refused = BatchOf(model.Request(&random), model.Request(&random));
  model.Execute(refused);
  CHECK(refused[1]->failed_with(TRITONSERVER_ERROR_UNSUPPORTED, "cannot be rescheduled: no such scheduler"));
}

void FailuresReachTheirRequests() {
  std::mt19937_64 random(11);
  bool whole = false;
  Model model("failing", 1, true, [&](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    result.failures.push_back({whole ? -1 : 1, TRITONSERVER_ERROR_UNAVAILABLE, "said to the client", "the traceback"});
    result.failures.push_back({77, TRITONSERVER_ERROR_INTERNAL, "of no request", ""});
    if (whole) result.columns.clear();
    return Answer{Whole(result, whole ? "" : DataOf(batch, data)), {}};
  });
  model.Load();
  const auto request = [&] { return model.Request({Bytes("A", {1, 1}, {Noise(9, &random)})}); };
  auto one = BatchOf(request(), request(), request());
  model.Execute(one);
  model.CheckEchoed(*one[0]);
  CHECK(one[1]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "said to the client"));
  model.CheckEchoed(*one[2]);
  CHECK(fake_triton::TakeLog() == "the traceback\n");
  whole = true;
  auto all = BatchOf(request(), request());
  model.Execute(all);
  for (const auto& sent : all) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "said to the client"));
}

void NonsenseFromTheWorkerFailsTheBatch() {
  std::mt19937_64 random(12);
  constexpr int64_t kHuge = int64_t{1} << 32;
  using Change = std::function<void(ResultMessage*)>;
  const std::vector<Change> lies = {
      [](ResultMessage* result) { result->request_count = 3; },
      [](ResultMessage* result) { result->request_count = -1; },
      [](ResultMessage* result) { result->columns[0].position = 2; },
      [](ResultMessage* result) { result->columns[0].position = -1; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape[0] += 1; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape.clear(); },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape[1] = 2; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape = {2, kHuge, kHuge}; },
      [](ResultMessage* result) { result->columns[0].tensors[0].shape = {2, -1, -3}; },
      [](ResultMessage* result) { result->columns[0].tensors[0].offset = -1; },
      [](ResultMessage* result) { result->columns[0].tensors[0].offset = kHuge; },
      [](ResultMessage* result) { result->columns[0].tensors[0].size -= 4; },
      [](ResultMessage* result) { result->columns[0].tensors[0].size = kHuge; },
      [](ResultMessage* result) { result->columns[0].datatype = TRITONSERVER_TYPE_INT8; },
      [](ResultMessage* result) { result->columns[0].datatype = 99; },
      [](ResultMessage* result) { result->columns[1].tensors[0].shape = {2, int64_t{1} << 61}; },
      [](ResultMessage* result) { result->columns[1].tensors[0].size = 7; },
      [](ResultMessage* result) { result->columns[1].tensors[0].size = 8; },  // lengths without their strings
  };
  const Change* lie = nullptr;
  pytriton::Bell bell;
  Model model("lying", 2, true, [&](const BatchMessage& batch, const char* data) {
    if (bell.kind != 0) return Answer{"x", bell};
    ResultMessage result = EchoOf(batch);
    if (lie != nullptr) (*lie)(&result);
    return Answer{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  const auto batch = [&] {
    return BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random), Bytes("B", {1, 1}, {"one"})}),
                   model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random), Bytes("B", {1, 1}, {"two"})}));
  };
  const auto check_failed = [&] {
    auto requests = batch();
    model.Execute(requests);
    for (const auto& sent : requests) CHECK(sent->request.failed && sent->request.outputs.empty());
  };
  for (const Change& each : lies) {
    lie = &each;
    check_failed();
    lie = nullptr;
    model.CheckServed(batch());
  }
  const int64_t kind = static_cast<int64_t>(pytriton::BellKind::kResult);
  const std::vector<pytriton::Bell> bells = {
      {kind, 99999, 64, 64},
      {99, 1, 64, 64},
      {kind, -1, std::numeric_limits<int64_t>::max(), 64},
      {kind, -1, 64, std::numeric_limits<int64_t>::max()},
      {kind, -1, 0, 64},
      {kind, -1, 64, -1},
      {kind, -1, 64, 15},
  };
  for (const pytriton::Bell& each : bells) {
    // Right after a new connection, so that the sequence may be right.
    model.Unbind();
    model.Bind();
    model.Execute(batch());
    bell = each;
    if (bell.sequence == -1) bell.sequence = 1;
    check_failed();
    bell = {};
    model.CheckServed(batch());
  }
}

void MutatedAnswersNeverCrash() {
  std::mt19937_64 random(13);
  int64_t failed = 0;
  Model model("mutated", 3, true, [&](const BatchMessage& batch, const char* data) {
    std::string message = Echo(batch, data).message;
    const int64_t kWords[] = {
        0, 1, -1, 2, 3, 64, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 13, 11, 1 << 20};
    const int changes = 1 + static_cast<int>(random() % 2);
    for (int i = 0; i < changes; ++i) {
      const int64_t word = random() % 4 == 0 ? static_cast<int64_t>(random()) : kWords[random() % std::size(kWords)];
      std::memcpy(message.data() + random() % (message.size() / 8) * 8, &word, 8);
    }
    if (random() % 16 == 0) message.resize(random() % message.size());
    return Answer{message, {}};
  });
  model.Load();
  const auto request = [&](int64_t dim) {
    return model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {1, 2}, &random), Bytes("B", {1, 2}, {"first", "2nd"}),
                          Numbers("C", TRITONSERVER_TYPE_UINT8, {1, dim}, &random)});
  };
  constexpr int kBatches = 400;
  for (int i = 0; i < kBatches; ++i) {
    auto batch = BatchOf(request(1), request(1 + i % 2), request(1));
    model.Execute(batch);
    failed += batch[0]->request.failed ? 1 : 0;
  }
  CHECK(failed > kBatches / 10 && failed < kBatches);
}

void ADeadWorkerIsReplaced() {
  std::mt19937_64 random(14);
  bool dying = true;
  Model model("mortal", 1, true, [&](const BatchMessage& batch, const char* data) {
    if (std::exchange(dying, false)) return Answer{"", {}, true};
    return Echo(batch, data);
  });
  model.Load();
  const auto request = [&] { return model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random)}); };
  auto lost = BatchOf(request(), request());
  model.Execute(lost);
  for (const auto& sent : lost) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal': "));
  model.CheckServed(BatchOf(request(), request()));
  CHECK(model.connections() == 2);
  model.Unbind();
  for (int i = 0; i < 3; ++i) {
    auto orphans = BatchOf(request(), request());
    model.Execute(orphans);
    for (const auto& sent : orphans) CHECK(sent->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'mortal'"));
    if (i > 0) CHECK(Contains(orphans[0]->request.error, "has no worker: it is not bound any more"));
  }
  model.Bind();
  model.CheckServed(BatchOf(request()));
}

void AProcessThatIsBeingStartedAgainIsWaitedFor() {
  std::mt19937_64 random(17);
  Model model("restarted", 1, true, Echo);
  model.Bind(4);
  model.Load();
  const auto restarts = [] { return fake_server::MetricOf("pytriton_worker_restarts_total"); };
  CHECK(restarts() == 0);  // the instance has seen none of them
  model.EndProcess("its process is being started again");
  auto waiting = BatchOf(model.Request(&random));
  std::thread execute([&] { model.Execute(waiting); });
  CHECK(!fake_triton::WaitUntil([&] { return Model::IsDone(waiting); }, std::chrono::milliseconds(300)));
  model.Bind(6);
  execute.join();
  Model::CheckEchoed(*waiting[0]);
  CHECK(restarts() == 2);
  model.Unload();
  CHECK(std::isnan(fake_server::MetricOf("pytriton_worker_restarts_total")));
}

void NobodyWaitsForAProcessWhoseRequestsAreCancelled() {
  std::mt19937_64 random(18);
  Model model("patient", 1, true, Echo);
  model.Load();
  model.EndProcess("its process is being started again");
  auto batch = BatchOf(model.Request(&random), model.Request(&random));
  batch[0]->request.timeout_us = 1;
  std::thread execute([&] { model.Execute(batch); });
  CHECK(!fake_triton::WaitUntil([&] { return Model::IsDone(batch); }, std::chrono::milliseconds(300)));
  batch[1]->request.cancelled = true;
  execute.join();
  CHECK(batch[0]->failed_with(TRITONSERVER_ERROR_UNAVAILABLE, "model 'patient': the request's timeout has passed"));
  CHECK(batch[1]->failed_with(TRITONSERVER_ERROR_CANCELLED, "model 'patient': the request was cancelled"));
}

void LoadingFailsWithoutAWorker() {
  Model model("unbound", 1, true, Echo);
  model.Unbind();
  TRITONBACKEND_Backend backend;
  model.instance()->model->backend = &backend;
  CHECK(TRITONBACKEND_Initialize(&backend) == nullptr);
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceInitialize(model.instance());
  CHECK(error != nullptr && Contains(error->message, "not bound any more"));
  CHECK(model.instance()->state == nullptr);
  TRITONSERVER_ErrorDelete(error);
  TRITONSERVER_ErrorDelete(TRITONBACKEND_Finalize(&backend));
}

void KeptBatchesStayAsTheyAre() {
  std::mt19937_64 random(15);
  Model model("kept", 2, true, Echo, 20);
  model.Load();
  for (int i = 0; i < 200; ++i) {
    const auto size = static_cast<int64_t>(random() % 5000);
    model.CheckServed(BatchOf(
        model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {1, size}, &random), Bytes("B", {1, 1}, {"a"})}),
        model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {2, size}, &random), Bytes("B", {2, 1}, {"b", "c"})})));
  }
}

void ResultsStayUntilTheyAreAnswered() {
  std::mt19937_64 random(16);
  Model model("result", 1, true, Echo);
  model.Load();
  fake_triton::SetResponseHook([&] { model.worker().Trim(); });
  for (int i = 0; i < 10; ++i) {
    model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {1, 5000}, &random)}),
                              model.Request({Numbers("A", TRITONSERVER_TYPE_FP64, {2, 5000}, &random)})));
  }
  fake_triton::SetResponseHook(nullptr);
}

void InstancesRunSideBySide() {
  constexpr int kInstances = 4;
  constexpr int kBatches = 300;
  Trimmer trimmer;
  pytriton::Services services([](const auto&) {});
  std::atomic<int64_t> served{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kInstances; ++number) {
    threads.emplace_back([&trimmer, &services, &served, number] {
      std::mt19937_64 random(100 + number);
      int64_t batches = 0;
      Model model(
          "instance-" + std::to_string(number), 3, true,
          [&](const BatchMessage& batch, const char* data) {
            if (++batches % 50 == 0) return Answer{"", {}, true};
            return Echo(batch, data);
          },
          number * 2);
      pytriton::Instance instance(
          model.instance(), [&trimmer](const auto& arena, const auto&) { trimmer.Watch(arena); }, &services);
      for (int i = 0; i < kBatches; ++i) {
        Requests batch;
        std::vector<TRITONBACKEND_Request*> requests;
        std::vector<bool> good;
        for (uint64_t n = 0; n <= random() % 6; ++n) {
          auto [sent, is_good] = RandomRequest(model, &random);
          requests.push_back(&sent->request);
          good.push_back(is_good);
          batch.push_back(std::move(sent));
        }
        instance.Execute(requests.data(), static_cast<uint32_t>(requests.size()));
        trimmer.Batch();
        CHECK(Model::IsDone(batch));
        for (size_t n = 0; n < batch.size(); ++n) {
          if (Contains(batch[n]->request.error, "gone")) continue;  // the worker hung up
          CHECK(batch[n]->request.failed == !good[n]);
          if (!good[n]) continue;
          model.CheckEchoed(*batch[n]);
          ++served;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(served > kInstances * kBatches);
}

const Behaviours kBehaviours = {
    {"equal_shapes_are_stacked", EqualShapesAreStacked},
    {"different_shapes_lie_apart", DifferentShapesLieApart},
    {"every_datatype_comes_back", EveryDatatypeComesBack},
    {"bytes_come_back", BytesComeBack},
    {"missing_inputs_are_left_out", MissingInputsAreLeftOut},
    {"pieces_are_joined", PiecesAreJoined},
    {"empty_tensors_come_back", EmptyTensorsComeBack},
    {"models_without_batches_have_no_rows", ModelsWithoutBatchesHaveNoRows},
    {"details_reach_the_worker", DetailsReachTheWorker},
    {"statistics_are_reported", StatisticsAreReported},
    {"bad_requests_fail_alone", BadRequestsFailAlone},
    {"gpu_memory_is_refused", GpuMemoryIsRefused},
    {"envelopes_reach_the_worker", EnvelopesReachTheWorker},
    {"response_parameters_reach_the_client", ResponseParametersReachTheClient},
    {"requests_go_back_to_the_server", RequestsGoBackToTheServer},
    {"failures_reach_their_requests", FailuresReachTheirRequests},
    {"nonsense_from_the_worker_fails_the_batch", NonsenseFromTheWorkerFailsTheBatch},
    {"mutated_answers_never_crash", MutatedAnswersNeverCrash},
    {"a_dead_worker_is_replaced", ADeadWorkerIsReplaced},
    {"a_process_that_is_being_started_again_is_waited_for", AProcessThatIsBeingStartedAgainIsWaitedFor},
    {"nobody_waits_for_a_process_whose_requests_are_cancelled", NobodyWaitsForAProcessWhoseRequestsAreCancelled},
    {"loading_fails_without_a_worker", LoadingFailsWithoutAWorker},
    {"kept_batches_stay_as_they_are", KeptBatchesStayAsTheyAre},
    {"results_stay_until_they_are_answered", ResultsStayUntilTheyAreAnswered},
    {"instances_run_side_by_side", InstancesRunSideBySide},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviours, argc, argv); }
