// Watches the mutexes of the thread that handles gRPC streams.
#include <pthread.h>

#include "guard/interpose.h"
#include "guard/streams.h"

using namespace pytriton::guard;  // NOLINT: this file is a program's

namespace {

bool IsOfStream(const pthread_mutex_t* mutex) {
  return IsStreamThread() && mutex->__data.__kind == PTHREAD_MUTEX_RECURSIVE_NP;
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return IsOfStream(mutex) ? LockInStreamThread(mutex) : PYTRITON_NEXT(pthread_mutex_lock)(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  return IsOfStream(mutex) ? UnlockInStreamThread(mutex) : PYTRITON_NEXT(pthread_mutex_unlock)(mutex);
}
}
