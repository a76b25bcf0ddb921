# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Linear filters of numpy arrays; ``upsweep._backends.cpu.filter`` has checked the arguments."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t

from _dtypes cimport dtype_code

cnp.import_array()

cdef extern from "common/signals.hpp":   # Ctrl-C ends a long call
    pass


cdef extern from "filter/filter.hpp" namespace "upsweep" nogil:
    cdef enum FilterType:
        kFilterReal, kFilterComplex, kFilterLong, kFilterLongComplex
    cdef cppclass FilterProblem:
        FilterProblem() except +
        int64_t outer, length, inner
        const char* x
        int64_t x_strides[3]
        int32_t type, x_dtype, x_swapped, y_dtype
        char* y
        const void* initial
        void* final_state
        int64_t order
        const void* b
        const void* a
        int32_t n_threads
    void run_filter(const FilterProblem&) except +


def lfilter(cnp.ndarray b not None, cnp.ndarray a not None, cnp.ndarray x not None, cnp.ndarray initial,
            cnp.ndarray y not None, cnp.ndarray final_state, int n_threads):
    """Filter x along the second of its three axes, and write y and, if asked for, the states after the last step."""
    cdef FilterProblem problem
    cdef int number = cnp.PyArray_TYPE(b)
    cdef int axis
    problem.outer, problem.length, problem.inner = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2)
    problem.x = cnp.PyArray_BYTES(x)
    for axis in range(3):
        problem.x_strides[axis] = cnp.PyArray_STRIDE(x, axis)
    problem.type = (kFilterReal if number == cnp.NPY_DOUBLE else kFilterComplex if number == cnp.NPY_CDOUBLE
                    else kFilterLong if number == cnp.NPY_LONGDOUBLE else kFilterLongComplex)
    if problem.type == kFilterReal or problem.type == kFilterComplex:
        problem.x_dtype, problem.x_swapped = dtype_code(x), cnp.PyArray_ISBYTESWAPPED(x)
        problem.y_dtype = dtype_code(y)
    problem.y = cnp.PyArray_BYTES(y)
    problem.initial = NULL if initial is None else cnp.PyArray_DATA(initial)
    problem.final_state = NULL if final_state is None else cnp.PyArray_DATA(final_state)
    problem.order = cnp.PyArray_DIM(b, 0) - 1
    problem.b, problem.a = cnp.PyArray_DATA(b), cnp.PyArray_DATA(a)
    problem.n_threads = n_threads
    with nogil:
        run_filter(problem)
