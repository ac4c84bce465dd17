// A call hangs just while those before it are counted: each is counted once. Stands in for the server's metrics.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "guard/gate.h"
#include "guard/interpose.h"
#include "guard/metrics.h"
#include "triton/api.h"

namespace {

constexpr uint64_t kHangs = 5;
constexpr size_t kGateSize = 4096;
constexpr size_t kHangsAt = 8;

std::atomic<uint64_t>* hangs = nullptr;  // in the gate, as the controller counts them

std::map<std::string, double>& Totals() {
  static std::map<std::string, double> totals;
  return totals;
}

TRITONSERVER_Error* NewFamily(TRITONSERVER_MetricFamily** family, TRITONSERVER_MetricKind, const char* name,
                              const char*) {
  *family = reinterpret_cast<TRITONSERVER_MetricFamily*>(&Totals()[name]);
  return nullptr;
}

TRITONSERVER_Error* NewMetric(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family,
                              const TRITONSERVER_Parameter**, uint64_t) {
  *metric = reinterpret_cast<TRITONSERVER_Metric*>(family);
  return nullptr;
}

TRITONSERVER_Error* Increment(TRITONSERVER_Metric* metric, double value) {
  *reinterpret_cast<double*>(metric) += value;
  if (*hangs > 0 && *hangs < kHangs) ++*hangs;
  return nullptr;
}

}  // namespace

void* pytriton::guard::NextDefinition(const char* name) {
  static const std::map<std::string, void*> definitions = {
      {"TRITONSERVER_MetricFamilyNew", reinterpret_cast<void*>(NewFamily)},
      {"TRITONSERVER_MetricNew", reinterpret_cast<void*>(NewMetric)},
      {"TRITONSERVER_MetricIncrement", reinterpret_cast<void*>(Increment)},
  };
  const auto found = definitions.find(name);
  return found == definitions.end() ? nullptr : found->second;
}

int main() {
  const int file = memfd_create("gate", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, kGateSize) != 0) return 1;
  void* memory = mmap(nullptr, kGateSize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return 1;
  hangs = reinterpret_cast<std::atomic<uint64_t>*>(static_cast<char*>(memory) + kHangsAt);
  setenv("PYTRITON_GATE", std::to_string(file).c_str(), 1);
  setenv("PYTRITON_SERVER_RESTARTS", "2", 1);
  pytriton::guard::OpenGate();
  pytriton::guard::PublishMetrics();
  *hangs = 1;
  for (uint64_t i = 0; i <= kHangs; ++i) pytriton::guard::UpdateHangs();
  const double counted = Totals()["pytriton_hanging_calls_total"];
  if (counted != static_cast<double>(kHangs) || Totals()["pytriton_server_restarts_total"] != 2) {
    std::printf("%.0f of %llu hanging calls were counted\n", counted, static_cast<unsigned long long>(kHangs));
    return 1;
  }
  std::printf("passed\n");
  return 0;
}
