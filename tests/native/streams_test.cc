// The end of a gRPC stream and its responses, in threads that lock their mutexes as the front end's do.
#include "guard/streams.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "guard/interpose.h"

// Those of the sanitizer, if it has some.
void* pytriton::guard::NextDefinition(const char* name) { return dlsym(RTLD_DEFAULT, name); }

// The front end's orders contradict each other.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }  // NOLINT: the sanitizer's name

namespace {

using namespace pytriton::guard;  // NOLINT: what is under test

constexpr int kRequests = 20'000;
constexpr int kResponders = 3;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

// A lock of the thread that handles streams.
class Lock {
 public:
  explicit Lock(std::recursive_mutex& mutex) : mutex_(mutex.native_handle()) { LockInStreamThread(mutex_); }
  ~Lock() { UnlockInStreamThread(mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t* const mutex_;
};

struct Stream {
  std::recursive_mutex stream;
  std::recursive_mutex request;
  std::atomic<bool> has_ended{false};
  std::atomic<int> responses{0};
};

// As the front end: the check and the response are not one step.
void Respond(Stream* stream) {
  const StreamResponse given;
  const bool has_ended = stream->has_ended;
  std::this_thread::yield();
  const std::lock_guard<std::recursive_mutex> first(stream->stream);
  const std::lock_guard<std::recursive_mutex> second(stream->request);
  if (has_ended != stream->has_ended) Fail("a stream ended while a response was given to it");
  ++stream->responses;
}

void Read(Stream* stream) {
  ExpectStreamMutex();
  const Lock lock(stream->stream);
}

void End(Stream* stream) {
  const Lock first(stream->request);
  const Lock second(stream->stream);
  stream->has_ended = !stream->has_ended;
}

void WriteNext(Stream* stream) {
  const Lock first(stream->stream);
  const Lock second(stream->request);
}

void StreamsEndBetweenResponses() {
  Stream stream;
  std::atomic<bool> stops{false};
  std::vector<std::thread> responders;
  for (int i = 0; i < kResponders; ++i) {
    responders.emplace_back([&] {
      while (!stops) Respond(&stream);
    });
  }
  for (int i = 0; i < kRequests; ++i) {
    Read(&stream);
    WriteNext(&stream);
    End(&stream);
  }
  stops = true;
  for (std::thread& responder : responders) responder.join();
  if (stream.responses == 0) Fail("there were no responses");
}

// What is not the end of a stream does not wait for responses.
void ResponsesGoOnWhileAStreamGoesOn() {
  Stream stream;
  Read(&stream);
  std::atomic<bool> is_given{false};
  std::atomic<bool> stops{false};
  std::thread responder([&] {
    const StreamResponse given;
    is_given = true;
    while (!stops) std::this_thread::yield();
  });
  while (!is_given) std::this_thread::yield();
  WriteNext(&stream);
  stops = true;
  responder.join();
}

// A request that has one response may still be in use by the thread that gives it.
void NoResponseIsBeingGivenWhileAnEventOfAPlainRequestIsHandled() {
  Stream stream;
  Read(&stream);
  BeginPlainRequest();
  std::atomic<bool> is_in_use{false};
  std::atomic<bool> is_given{false};
  std::thread responder([&] {
    const StreamResponse given;
    is_in_use = true;
    is_given = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_in_use = false;
  });
  while (!is_given) std::this_thread::yield();
  {
    const Lock lock(stream.stream);
    if (is_in_use) Fail("an event was handled while a response was given");
  }
  responder.join();
  EndPlainRequest();
}

// A request may be where a stream was before.
void AMutexThatIsNoStreamsAnyLongerIsForgotten() {
  Stream stream;
  Stream next;
  Read(&stream);
  Read(&next);
  {
    const Lock first(next.stream);
    const Lock second(stream.stream);
  }
  std::atomic<bool> is_given{false};
  std::thread responder;
  {
    const Lock end(stream.stream);
    responder = std::thread([&] {
      const StreamResponse given;
      is_given = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is_given) Fail("a response was given while its stream ended");
  }
  responder.join();
}

// Of a cached response, which the core gives while it gets the request.
void AResponseMayBeGivenByTheThreadThatHandlesStreams() {
  Stream stream;
  const StreamResponse given;
  const StreamResponse inner;
  const Lock first(stream.request);
  const Lock second(stream.stream);
}

}  // namespace

int main() {
  BecomeStreamThread();
  StreamsEndBetweenResponses();
  ResponsesGoOnWhileAStreamGoesOn();
  NoResponseIsBeingGivenWhileAnEventOfAPlainRequestIsHandled();
  AResponseMayBeGivenByTheThreadThatHandlesStreams();
  AMutexThatIsNoStreamsAnyLongerIsForgotten();
  std::puts("passed");
}
