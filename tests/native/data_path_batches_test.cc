// Batches on their way through the backend, from Triton's requests to a worker that takes one at a time, and back:
// `data_path_batches_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data_path.h"

namespace data_path {

namespace {

using fake_worker::DataOf;
using fake_worker::Echo;
using fake_worker::EchoOf;
using fake_worker::Served;
using fake_worker::Whole;
using pytriton::BatchMessage;
using pytriton::ResultMessage;
using pytriton::TensorLocation;

// A worker that looks at each batch before it echoes it. The looks happen in its thread, before the response.
fake_worker::Serve Watched(std::function<void(const BatchMessage&, const char*)> look) {
  return [look = std::move(look)](const BatchMessage& batch, const char* data) {
    look(batch, data);
    return Echo(batch, data);
  };
}

void EqualShapesAreStacked() {
  std::mt19937_64 random(1);
  std::string expected;
  Model model(
      "stacked", 1, true, Watched([&](const BatchMessage& batch, const char* data) {
        CHECK((batch.request_count == 3 && batch.rows == std::vector<int64_t>{1, 4, 2}));
        CHECK(batch.metadata.empty());
        CHECK(batch.columns.size() == 1 && batch.columns[0].is_stacked() && batch.columns[0].tensors.size() == 1);
        const TensorLocation& tensor = batch.columns[0].tensors[0];
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

void OutputsMayLieInTheBatch() {
  std::mt19937_64 random(1);
  Model model("returned", 2, true, [](const BatchMessage& batch, const char*) {
    ResultMessage result = EchoOf(batch);
    for (pytriton::TensorColumn& column : result.columns) column.place = pytriton::Place::kInBatch;
    return Served{Whole(result, ""), {}};
  });
  model.Load();
  model.CheckServed(BatchOf(
      model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, &random), Bytes("B", {1, 1}, {"one"})}),
      model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {2, 3}, &random), Bytes("B", {2, 1}, {"", "three"})})));
}

void DifferentShapesLieApart() {
  std::mt19937_64 random(2);
  Model model("ragged", 1, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(!batch.columns[0].is_stacked() && batch.columns[0].tensors.size() == 2);
              }));
  model.Load();
  model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3}, &random)}),
                            model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 5}, &random)})));
  model.CheckServed(BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3}, &random)}),
                            model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3, 1}, &random)})));
  model.CheckServed(BatchOf(model.Request({Bytes("A", {1, 2}, {"a", std::string("\0b", 2)})}),
                            model.Request({Bytes("A", {1, 3}, {"", "", "longer than a few bytes"})})));
}

void AnOutputMayHaveAColumnForEachDatatype() {
  std::mt19937_64 random(24);
  bool is_sent_twice = false;
  Model model("mixed", 1, true, [&](const BatchMessage& batch, const char* data) {
    ResultMessage result = EchoOf(batch);
    pytriton::TensorColumn second = result.columns[0];
    CHECK(!second.is_stacked());
    result.columns[0].tensors[1] = {-1, 0, {}};
    if (!is_sent_twice) second.tensors[0] = {-1, 0, {}};
    result.columns.push_back(second);
    return Served{Whole(result, DataOf(batch, data)), {}};
  });
  model.Load();
  const auto batch = [&] {
    return BatchOf(model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 3}, &random)}),
                   model.Request({Numbers("A", TRITONSERVER_TYPE_INT16, {2, 5}, &random)}));
  };
  model.CheckServed(batch());
  is_sent_twice = true;
  auto refused = batch();
  model.Execute(refused);
  for (const auto& sent : refused) CHECK(sent->request.failed && sent->request.outputs.empty());
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
              Watched([](const BatchMessage& batch, const char*) { CHECK(batch.columns[0].is_stacked()); }));
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
                CHECK(batch.columns[0].is_stacked() && batch.columns[0].position == 0);
                CHECK(!batch.columns[1].is_stacked() && batch.columns[1].position == 2);
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

void MetadataReachesTheWorker() {
  std::mt19937_64 random(7);
  Model model("details", 3, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(batch.metadata.size() == 2);
                const pytriton::RequestMetadata& metadata = batch.metadata[1];
                CHECK(batch.metadata[0].empty());
                CHECK(metadata.id == "id-7");
                CHECK((!metadata.all_outputs && metadata.outputs == std::vector<int64_t>{0, 2}));
                CHECK(metadata.parameters.size() == 4);
                CHECK(metadata.parameters[0].key == "text" && metadata.parameters[0].text == "h\xc3\xa9");
                CHECK(metadata.parameters[1].type == pytriton::ParameterType::kInt);
                CHECK(metadata.parameters[1].number == std::numeric_limits<int64_t>::min());
                CHECK(metadata.parameters[2].type == pytriton::ParameterType::kBool);
                CHECK(metadata.parameters[2].number == 1);
                double number;
                std::memcpy(&number, &metadata.parameters[3].number, sizeof(number));
                CHECK(metadata.parameters[3].type == pytriton::ParameterType::kDouble && number == 0.5);
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
    if (batch.request_count == 2) result.failures.push_back({0, {TRITONSERVER_ERROR_INTERNAL, "no", "", ""}});
    return Served{Whole(result, DataOf(batch, data)), {}};
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

void OptionsReachTheWorker() {
  std::mt19937_64 random(21);
  Model model("envelopes", 1, true, Watched([](const BatchMessage& batch, const char*) {
                CHECK(batch.metadata.size() == 4);
                CHECK(batch.metadata[0].options.empty());
                const pytriton::RequestOptions& first = batch.metadata[1].options;
                CHECK(first.correlation_id == -1 && first.correlation_string.empty());
                CHECK(first.flags == 3 && first.priority == 2 && first.trace == 7);
                CHECK(first.trace_context == R"({"traceparent": "00-1-2-01"})");
                CHECK(first.timeout_us == 60'000'000);
                CHECK(batch.metadata[2].options.correlation_string == "s\xc3\xa9quence");
                CHECK(batch.metadata[2].options.correlation_id == 0);
                CHECK(batch.metadata[3].options.flags == 1);
              }));
  model.Load();
  auto batch = BatchOf(model.Request(&random), model.Request(&random), model.Request(&random), model.Request(&random));
  TRITONBACKEND_Request& first = batch[1]->request;
  first.correlation_id = std::numeric_limits<uint64_t>::max();
  first.flags = 3;
  first.priority = 2;
  first.timeout_us = 60'000'000;
  first.trace = 7;
  for (const auto& each : batch) each->request.with_traced = true;
  first.trace_context = R"({"traceparent": "00-1-2-01"})";
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
    return Served{Whole(result, DataOf(batch, data)), {}};
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
  CHECK(beyond[1]->failed_with(TRITONSERVER_ERROR_INTERNAL, "parameters of a response that does not exist"));
}

const Behaviors kBehaviors = {
    {"equal_shapes_are_stacked", EqualShapesAreStacked},
    {"outputs_may_lie_in_the_batch", OutputsMayLieInTheBatch},
    {"different_shapes_lie_apart", DifferentShapesLieApart},
    {"an_output_may_have_a_column_for_each_datatype", AnOutputMayHaveAColumnForEachDatatype},
    {"every_datatype_comes_back", EveryDatatypeComesBack},
    {"bytes_come_back", BytesComeBack},
    {"missing_inputs_are_left_out", MissingInputsAreLeftOut},
    {"pieces_are_joined", PiecesAreJoined},
    {"empty_tensors_come_back", EmptyTensorsComeBack},
    {"models_without_batches_have_no_rows", ModelsWithoutBatchesHaveNoRows},
    {"metadata_reaches_the_worker", MetadataReachesTheWorker},
    {"statistics_are_reported", StatisticsAreReported},
    {"options_reach_the_worker", OptionsReachTheWorker},
    {"response_parameters_reach_the_client", ResponseParametersReachTheClient},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
