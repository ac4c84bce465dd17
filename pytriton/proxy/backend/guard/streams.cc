// Workaround for Triton (ending-streams): one thread of the front end handles the events of all gRPC streams. A stream
// has a mutex, and so has each of its requests. When a stream ends while a response is given to it,
// - the thread that gives the response locks the stream's mutex and then the request's, and the front end's thread the
//   request's and then the stream's: both may wait for ever, and with them all streams of the server;
// - the one that gives the response may just have found that the stream goes on, and overwrite what the other has noted
//   about its end. The request is then released too early, and its next response crashes the server.
// And the thread that gives the only response to a request of a model that is not decoupled still changes the request
// after the response was sent. The front end's thread may have released it by then, for another one to use.
//
// So responses wait while that thread handles the end of a stream, and it waits for those that are being given. The end
// is recognized by the mutex that it locks first: a request's. At all other events it is the stream's, which is known
// by being the first one locked after a request was passed to the core. These mutexes are the recursive ones. While
// there are requests to models that are not decoupled, responses wait at all events.
#include "guard/streams.h"

#include <atomic>
#include <unordered_set>
#include <utility>

#include "guard/interpose.h"

namespace pytriton::guard {

namespace {

// Locked for reading by those that give responses, and for writing by the thread that handles streams.
pthread_rwlock_t responses = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

std::atomic<int> plain_requests{0};

thread_local bool is_stream_thread = false;
thread_local bool has_locked_responses = false;

class StreamThread {
 public:
  void ExpectStreamMutex() { expects_stream_mutex_ = true; }

  void BeginLock(const pthread_mutex_t* mutex) {
    if (locks_++ > 0) {
      stream_mutexes_.erase(mutex);  // a request's, where a stream's was before
      return;
    }
    if (std::exchange(expects_stream_mutex_, false)) stream_mutexes_.insert(mutex);
    if (plain_requests > 0 || stream_mutexes_.count(mutex) == 0) KeepResponsesAway();
  }

  void EndLock() {
    if (--locks_ == 0) LetResponsesIn();
  }

  void KeepResponsesAway() {
    if (has_locked_responses) return;
    pthread_rwlock_wrlock(&responses);
    keeps_responses_away_ = has_locked_responses = true;
  }

  void LetResponsesIn() {
    if (!keeps_responses_away_) return;
    keeps_responses_away_ = has_locked_responses = false;
    pthread_rwlock_unlock(&responses);
  }

 private:
  std::unordered_set<const pthread_mutex_t*> stream_mutexes_;
  int locks_ = 0;
  bool expects_stream_mutex_ = false;
  bool keeps_responses_away_ = false;
};

thread_local StreamThread stream_thread;

}  // namespace

void BecomeStreamThread() { is_stream_thread = true; }

bool IsStreamThread() { return is_stream_thread; }

void ExpectStreamMutex() { stream_thread.ExpectStreamMutex(); }

void BeginPlainRequest() { ++plain_requests; }

void EndPlainRequest() { --plain_requests; }

void KeepResponsesAway() { stream_thread.KeepResponsesAway(); }

void LetResponsesIn() { stream_thread.LetResponsesIn(); }

int LockInStreamThread(pthread_mutex_t* mutex) {
  stream_thread.BeginLock(mutex);
  return PYTRITON_NEXT(pthread_mutex_lock)(mutex);
}

int UnlockInStreamThread(pthread_mutex_t* mutex) {
  const int status = PYTRITON_NEXT(pthread_mutex_unlock)(mutex);
  stream_thread.EndLock();
  return status;
}

StreamResponse::StreamResponse() : is_outer_(!std::exchange(has_locked_responses, true)) {
  if (is_outer_) pthread_rwlock_rdlock(&responses);
}

StreamResponse::~StreamResponse() {
  if (!is_outer_) return;
  has_locked_responses = false;
  pthread_rwlock_unlock(&responses);
}

}  // namespace pytriton::guard
