// Keeps the end of a gRPC stream apart from its responses.
#pragma once

#include <pthread.h>

namespace pytriton::guard {

// Marks the calling thread as the front end's that handles gRPC streams.
void BecomeStreamThread();

bool IsStreamThread();

// Marks that the next recursive mutex that the calling thread, which handles streams, locks is that of a stream.
void ExpectStreamMutex();

// Counts the requests of streams in flight to models that are not decoupled.
void BeginPlainRequest();
void EndPlainRequest();

// Keeps responses away until the calling thread, which handles streams, lets them in, or has unlocked the next
// recursive mutexes that it locks.
void KeepResponsesAway();
void LetResponsesIn();

// Locks and unlocks a recursive mutex in the thread that handles streams. The first one that it locks keeps responses
// away until it has unlocked all, unless it is known as that of a stream and no plain request is in flight.
int LockInStreamThread(pthread_mutex_t* mutex);
int UnlockInStreamThread(pthread_mutex_t* mutex);

// A response that is being given to the front end.
class StreamResponse {
 public:
  StreamResponse();
  ~StreamResponse();
  StreamResponse(const StreamResponse&) = delete;
  StreamResponse& operator=(const StreamResponse&) = delete;

 private:
  bool is_outer_;
};

}  // namespace pytriton::guard
