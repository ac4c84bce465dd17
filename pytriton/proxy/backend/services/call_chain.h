// Who waits for a request that a worker makes: the batch that its callable is called for, those that wait for that one,
// and so on. A request to a model all of whose places such batches hold would wait for itself.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace pytriton {

// By which the requests of workers tell who waits for them; the callables never see it.
constexpr const char* kCallersParameter = "pytriton_callers";

// A batch that is being served, and waits.
struct Caller {
  std::string place;     // which of the model's places it holds; unique in the server
  int64_t capacity = 1;  // how many batches the model's instances take at a time, together
  int64_t version = 0;
  std::string model;

  bool operator==(const Caller& other) const { return place == other.place; }
};

using CallChain = std::vector<Caller>;

// As the value of a parameter, one per line. Reading leaves out what it does not understand: the parameter may be
// anybody's.
std::string ToText(const CallChain& call_chain);
CallChain ParseCallChain(std::string_view text);

// Adds those that are not among them yet.
void Join(CallChain* call_chain, const CallChain& others);

// How many batches the instances of this backend's models take at a time.
class Capacities {
 public:
  void Add(const std::string& model, int64_t version, int64_t capacity);
  int64_t Of(const std::string& model, int64_t version) const;
  // The version that Triton takes where a request names none; -1 where none is known.
  int64_t Latest(const std::string& model) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<int64_t, int64_t>> capacities_;  // those that have any
};

// Whether a request to the model would wait for itself.
bool IsCycle(const CallChain& call_chain, const std::string& model, int64_t version, const Capacities& capacities);

// For the worker's error.
std::string Chain(const CallChain& call_chain, const std::string& model);

}  // namespace pytriton
