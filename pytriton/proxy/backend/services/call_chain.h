// The call chain of a request that a worker sends: the batch for which its callable is running, the batches that wait
// for that one, and so on. A request deadlocks if the batches of its own call chain occupy every instance of the model
// that it is sent to.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace pytriton {

// A batch that is being served, and waits for a request.
struct Caller {
  std::string place;     // the instance's slot that it occupies; unique in the server
  int64_t capacity = 1;  // batches that all instances of the model take at a time
  int64_t version = 0;
  std::string model;

  bool operator==(const Caller& other) const { return place == other.place; }
};

using CallChain = std::vector<Caller>;

// Converts from and to the value of the parameter `kCallersParameter`, one batch per line. Parsing skips malformed
// lines.
std::string ToText(const CallChain& call_chain);
CallChain ParseCallChain(std::string_view text);

// Adds the batches that are not in the chain yet.
void Join(CallChain* call_chain, const CallChain& others);

// The number of batches that the instances of each model of this backend take at a time.
class Capacities {
 public:
  void Add(const std::string& model, int64_t version, int64_t capacity);
  int64_t Of(const std::string& model, int64_t version) const;
  // The version that Triton uses if a request names none; -1 if none is known.
  int64_t Latest(const std::string& model) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<int64_t, int64_t>> capacities_;  // versions that have any
};

// Detects deadlock: every instance of the model is blocked on this call chain.
bool IsCycle(const CallChain& call_chain, const std::string& model, int64_t version, const Capacities& capacities);

// Describes the chain in an error message.
std::string DescribeChain(const CallChain& call_chain, const std::string& model);

}  // namespace pytriton
