#include "guard/arrivals.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "guard/address_hash.h"

namespace pytriton::guard {

namespace {

constexpr int kPlaceBits = 14;

struct Place {
  std::atomic<const void*> request{nullptr};
  std::atomic<uint64_t> time{0};
};

std::array<Place, size_t{1} << kPlaceBits> places;

Place& PlaceOf(const void* request) { return places[AddressHash(request, kPlaceBits)]; }

}  // namespace

void NoteArrival(const TRITONSERVER_InferenceRequest* request) {
  Place& place = PlaceOf(request);
  place.time.store(MonotonicNs(), std::memory_order_relaxed);
  place.request.store(request, std::memory_order_release);
}

void ForgetArrival(const TRITONSERVER_InferenceRequest* request) {
  Place& place = PlaceOf(request);
  const void* expected = request;
  if (place.request.load(std::memory_order_relaxed) != request) return;
  place.request.compare_exchange_strong(expected, nullptr, std::memory_order_relaxed);
}

}  // namespace pytriton::guard

uint64_t PYTRITON_ArrivalNs(const TRITONBACKEND_Request* request) {
  // A backend's request is the same object as the front end's.
  const pytriton::guard::Place& place = pytriton::guard::PlaceOf(request);
  if (place.request.load(std::memory_order_acquire) != static_cast<const void*>(request)) return 0;
  return place.time.load(std::memory_order_relaxed);
}
