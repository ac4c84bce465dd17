#include "data_path.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "model_instance/registry_client.h"
#include "triton/datatype.h"

// Instead of registration.cc: workers are found without ZeroMQ.
namespace pytriton {

namespace {

std::mutex replies_mutex;
std::map<std::string, RegistrationReply> replies;  // by the path of the model's worker file

}  // namespace

WorkerFile WorkerFile::Read(const std::string& path) { return {"registry", path}; }

RegistrationReply Register(const std::string&, const RegistrationMessage& registration, int) {
  const std::lock_guard<std::mutex> lock(replies_mutex);
  const auto found = replies.find(registration.binding);
  if (found == replies.end()) throw RegistrationError("it is no longer bound");
  return found->second;
}

}  // namespace pytriton

namespace data_path {

using fake_worker::Session;
using pytriton::ElementCount;
using pytriton::ExecutionMode;
using pytriton::ItemSize;

namespace {

constexpr std::chrono::seconds kPatience(20);

}  // namespace

int Run(const Behaviors& behaviors, int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  for (const auto& [name, run] : behaviors) {
    if (wanted == "--list") std::printf("%s\n", name.c_str());
    if (wanted != name) continue;
    run();
    return 0;
  }
  return wanted == "--list" ? 0 : 2;
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool ComesTrue(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string Serialized(const Strings& strings) {
  std::string data;
  for (const std::string& each : strings) {
    const auto length = static_cast<uint32_t>(each.size());
    data.append(reinterpret_cast<const char*>(&length), sizeof(length));
    data += each;
  }
  return data;
}

std::string Noise(int64_t size, std::mt19937_64* random) {
  std::string data(size, '\0');
  for (char& byte : data) byte = static_cast<char>((*random)());
  return data;
}

TRITONBACKEND_Input Numbers(const std::string& name, TRITONSERVER_DataType datatype, std::vector<int64_t> shape,
                            std::mt19937_64* random) {
  const int64_t size = ElementCount(shape.data(), shape.size()) * ItemSize(datatype);
  return {name, datatype, std::move(shape), Noise(size, random)};
}

TRITONBACKEND_Input Bytes(const std::string& name, std::vector<int64_t> shape, const Strings& strings) {
  return {name, TRITONSERVER_TYPE_BYTES, std::move(shape), Serialized(strings)};
}

Model::Model(const std::string& name, int tensor_count, bool batching, Mode mode, Session session)
    : session_(std::move(session)), at_doorbell_(mode.at_doorbell) {
  admission_.socket = name + ".socket";
  admission_.batching = batching;
  admission_.mode = mode.max_in_flight == 0 ? ExecutionMode::kSequential
                    : mode.deferred         ? ExecutionMode::kDeferred
                                            : ExecutionMode::kConcurrent;
  admission_.max_in_flight = std::max<int64_t>(1, mode.max_in_flight);
  admission_.decoupled = mode.decoupled;
  for (int i = 0; i < tensor_count; ++i) {
    admission_.inputs.push_back(std::string(1, static_cast<char>('A' + i)));
    admission_.outputs.push_back("OUT_" + admission_.inputs.back());
  }
  model_.name = name;
  model_.folder = "/models/" + name;
  model_.backend = &backend_;
  instance_.name = name + "_0";
  instance_.model = &model_;
  Bind();
}

Model::~Model() {
  Unload();
  Unbind();
}

void Model::Bind(std::optional<int64_t> restart_count) {
  worker_ = std::make_unique<fake_worker::Worker>(admission_.socket, session_, at_doorbell_,
                                                  admission_.mode != ExecutionMode::kSequential);
  const std::lock_guard<std::mutex> lock(pytriton::replies_mutex);
  pytriton::replies[model_.folder + "/1/worker"] = {admission_, "", restart_count};
}

void Model::TakeGpuTensors() {
  admission_.gpus = std::string(16, '\0');  // as `fake_cuda.cc` identifies the first one
  Bind();
}

void Model::BuildBatches(int max_batch_size, bool varies) {
  model_.config = R"({"max_batch_size": )" + std::to_string(max_batch_size) + R"(, "input": [{"name": "A", "dims": [)" +
                  (varies ? "-1" : "3") + R"(]}], "parameters": {"pytriton_builds_batches": {"string_value": "yes"}}})";
}

void Model::EndProcess(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(pytriton::replies_mutex);
    pytriton::replies[model_.folder + "/1/worker"] = {std::nullopt, reason, std::nullopt};
  }
  worker_.reset();
}

void Model::Unbind() {
  {
    const std::lock_guard<std::mutex> lock(pytriton::replies_mutex);
    pytriton::replies.erase(model_.folder + "/1/worker");
  }
  worker_.reset();
}

void Model::Load() {
  CHECK(TRITONBACKEND_Initialize(&backend_) == nullptr);
  CHECK(TRITONBACKEND_ModelInitialize(&model_) == nullptr);
  CHECK(TRITONBACKEND_ModelInstanceInitialize(&instance_) == nullptr);
}

void Model::Unload() {
  if (instance_.state != nullptr) TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelInstanceFinalize(&instance_));
  if (model_.state != nullptr) TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelFinalize(&model_));
  if (backend_.state != nullptr) TRITONSERVER_ErrorDelete(TRITONBACKEND_Finalize(&backend_));
  instance_.state = nullptr;
  model_.state = nullptr;
  backend_.state = nullptr;
}

void Model::Submit(const Requests& batch) {
  std::vector<TRITONBACKEND_Request*> requests;
  for (const auto& sent : batch) requests.push_back(&sent->request);
  CHECK(TRITONBACKEND_ModelInstanceExecute(&instance_, requests.data(), static_cast<uint32_t>(requests.size())) ==
        nullptr);
}

void Model::Execute(const Requests& batch) {
  Submit(batch);
  if (admission_.mode != ExecutionMode::kSequential) return Wait(batch);
  CHECK(IsDone(batch));
}

bool Model::IsDone(const Requests& batch) {
  return std::all_of(batch.begin(), batch.end(), [](const auto& sent) { return sent->request.released; });
}

void Model::Wait(const Requests& batch) {
  CHECK(fake_triton::WaitUntil([&] { return IsDone(batch); }));
}

void Model::CheckEchoed(const Sent& sent, size_t times) {
  CHECK(!sent.request.failed);
  CHECK(sent.request.responses.size() == times);
  for (const auto& outputs : sent.request.responses) {
    size_t found = 0;
    for (const std::string& wanted : sent.request.requested_outputs) {
      const auto input = std::find_if(sent.inputs.begin(), sent.inputs.end(),
                                      [&](const auto& each) { return "OUT_" + each.name == wanted; });
      if (input == sent.inputs.end()) continue;
      ++found;
      const auto output = outputs.find(wanted);
      CHECK(output != outputs.end());
      CHECK(output->second.datatype == input->datatype);
      CHECK(output->second.shape == input->shape);
      CHECK(output->second.bytes() == input->data());
    }
    CHECK(outputs.size() == found);
  }
}

void Model::CheckServed(const Requests& batch) {
  Execute(batch);
  for (const auto& sent : batch) CheckEchoed(*sent);
}

std::unique_ptr<Sent> Model::Request(std::vector<TRITONBACKEND_Input> inputs) const {
  auto sent = std::make_unique<Sent>(std::move(inputs), admission_.outputs);
  sent->request.decoupled = admission_.decoupled;
  return sent;
}

std::unique_ptr<Sent> Model::Request(std::mt19937_64* random) const {
  return Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, 3}, random)});
}

std::pair<std::unique_ptr<Sent>, bool> RandomRequest(const Model& model, std::mt19937_64* random) {
  const auto below = [random](uint64_t bound) { return static_cast<int64_t>((*random)() % bound); };
  const auto cut = [&](TRITONBACKEND_Input* input) {
    if (below(3) == 0) input->Split({static_cast<size_t>(below(9)), static_cast<size_t>(below(9))});
  };
  const int64_t rows = 1 + below(4);
  std::vector<TRITONBACKEND_Input> inputs = {Numbers("A", TRITONSERVER_TYPE_FP32, {rows, 40}, random)};
  if (below(8) > 0) inputs.push_back(Numbers("B", TRITONSERVER_TYPE_INT16, {rows, below(3)}, random));
  if (below(4) > 0) {
    Strings strings;
    for (int64_t i = 0; i < rows * 2; ++i) strings.push_back(Noise(below(30), random));
    inputs.push_back(Bytes("C", {rows, 2}, strings));
  }
  for (TRITONBACKEND_Input& input : inputs) cut(&input);
  const bool bad = below(10) == 0;
  if (bad) inputs.back().buffers.push_back({{'x'}});
  std::shuffle(inputs.begin(), inputs.end(), *random);
  auto sent = model.Request(inputs);
  if (below(4) == 0) sent->request.requested_outputs = {"OUT_C", "OUT_A"};
  if (below(4) == 0) sent->request.id = std::to_string(below(1000));
  return {std::move(sent), !bad};
}

}  // namespace data_path
