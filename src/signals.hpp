// Lets the kernels of a module look for Python's signals (parallel.hpp). Included by the bindings alone.
#pragma once

#include <Python.h>

#include "parallel.hpp"

namespace upsweep {
namespace {

bool check_python_signals() {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;   // in other threads than the main one it does nothing
  PyGILState_Release(state);
  return raised;   // Python's exception stays set, and passes for the C++ exception that ends the call
}

[[maybe_unused]] const bool installed = (check_signals = check_python_signals, true);

}  // namespace
}  // namespace upsweep
