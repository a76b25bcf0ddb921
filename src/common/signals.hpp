// Lets the kernels of a module look for Python's signals (common/parallel.hpp). Included by the bindings alone.
#pragma once

#include <Python.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <pthread.h>
#endif

#include "common/parallel.hpp"

namespace upsweep {
namespace {

// Python runs the handlers of signals in the main thread alone. Other threads do not wait for the interpreter's lock,
// which ends a daemon thread at the interpreter's exit.
bool is_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();   // in the child of a fork too, whichever thread forked
#elif defined(__APPLE__)
  return pthread_main_np() != 0;
#else
  return true;
#endif
}

// Returns whether a handler has raised. Python's exception stays set, and takes the place of the C++ exception that
// ends the call.
bool check_python_signals() {
  if (!is_main_thread()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return raised;
}

[[maybe_unused]] const bool installed = (check_signals = check_python_signals, true);

}  // namespace
}  // namespace upsweep
