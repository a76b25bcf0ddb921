# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Counts of integer keys in numpy arrays; checks and messages are in ``upsweep.counts``."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint64_t

cnp.import_array()


cdef extern from "count.hpp" namespace "upsweep" nogil:
    cdef cppclass CountProblem:
        CountProblem() except +
        const char* keys
        int64_t stride, n
        int32_t key_type, n_threads
        const double* weights
        int64_t n_bins
        int64_t* counts
        double* sums
    cdef cppclass KeyRange:
        int64_t min
        uint64_t max
        int64_t first_negative
    KeyRange key_range(const CountProblem&) except +
    int64_t run_count(const CountProblem&) except +


cdef int describe_keys(CountProblem* problem, cnp.ndarray keys, int n_threads) except -1:
    cdef int size = cnp.PyArray_ITEMSIZE(keys)
    cdef bint is_unsigned = (<cnp.dtype>keys.descr).kind != b"i"
    problem.keys = cnp.PyArray_BYTES(keys)
    problem.stride = cnp.PyArray_STRIDE(keys, 0)
    problem.n = cnp.PyArray_DIM(keys, 0)
    problem.key_type = (0 if size == 1 else 2 if size == 2 else 4 if size == 4 else 6) + is_unsigned
    problem.n_threads = n_threads
    return 0


def find_range(cnp.ndarray keys not None, int n_threads):
    """(smallest, largest that is not negative, position of the first negative key or -1); at least one key."""
    cdef CountProblem problem
    cdef KeyRange found
    describe_keys(&problem, keys, n_threads)
    with nogil:
        found = key_range(problem)
    return found.min, found.max, found.first_negative


def count(cnp.ndarray keys not None, cnp.ndarray weights, cnp.ndarray out not None, int n_threads):
    """Add the keys, or their float64 weights, to the contiguous ``out`` (int64 or float64). Returns how many
    keys were outside it and left out."""
    cdef CountProblem problem
    cdef int64_t left_out
    describe_keys(&problem, keys, n_threads)
    problem.n_bins = cnp.PyArray_DIM(out, 0)
    if weights is None:
        problem.counts = <int64_t*>cnp.PyArray_DATA(out)
    else:
        problem.weights = <const double*>cnp.PyArray_DATA(weights)
        problem.sums = <double*>cnp.PyArray_DATA(out)
    with nogil:
        left_out = run_count(problem)
    return left_out
