// A Python extension that sleeps without the GIL, and takes it again in a destructor, as bindings of C++ libraries do.
#include <Python.h>
#include <unistd.h>

namespace {

class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() { PyEval_RestoreThread(state_); }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

PyObject* Nap(PyObject*, PyObject* args) {
  int milliseconds = 0;
  if (!PyArg_ParseTuple(args, "i", &milliseconds)) return nullptr;
  for (int i = 0; i < milliseconds; ++i) {
    const ReleasedGil released;
    usleep(1000);
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"nap", Nap, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "napping", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_napping() { return PyModule_Create(&definition); }
