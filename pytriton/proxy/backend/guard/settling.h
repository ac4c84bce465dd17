// Prevents models from being unloaded right after they were loaded.
//
// Workaround for Triton (unsettled-models): the thread of an instance starts while its model becomes ready, and sets up
// its queue only then. A server that unloads or replaces the model before that crashes in
// TritonBackendThread::StopBackendThread.
#pragma once

namespace pytriton::guard {

// Notes that a model was loaded; null for all models.
void NoteLoaded(const char* model);

// Waits until some time after the last load of a model; null for any model.
void WaitUntilSettled(const char* model);

}  // namespace pytriton::guard
