# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Counts of integer keys in numpy arrays; checks and messages are in ``upsweep.counts``."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint64_t

from _dtypes cimport dtype_code, kBool, kUInt8

cnp.import_array()


cdef extern from "count.hpp" namespace "upsweep" nogil:
    cdef cppclass CountProblem:
        CountProblem() except +
        const char* keys
        int64_t stride, n
        int32_t key_dtype, key_swapped, n_threads
        const char* weights
        int64_t weight_stride
        int32_t weight_dtype, weight_swapped
        int64_t n_bins
        int32_t overwrite
        int64_t* counts
        double* sums
    cdef cppclass KeyRange:
        uint64_t max
        int32_t any
        int64_t first_negative
    KeyRange key_range(const CountProblem&) except +
    void run_count(const CountProblem&) except +


cdef int describe_keys(CountProblem* problem, cnp.ndarray keys, int n_threads) except -1:
    cdef int32_t dtype = dtype_code(keys)
    problem.keys = cnp.PyArray_BYTES(keys)
    problem.stride = cnp.PyArray_STRIDE(keys, 0)
    problem.n = cnp.PyArray_DIM(keys, 0)
    problem.key_dtype = kUInt8 if dtype == kBool else dtype
    problem.key_swapped = cnp.PyArray_ISBYTESWAPPED(keys)
    problem.n_threads = n_threads
    return 0


def find_range(cnp.ndarray keys not None, int n_threads):
    """(largest key, or -1 where all are negative; position of the first negative key, or -1)."""
    cdef CountProblem problem
    cdef KeyRange found
    describe_keys(&problem, keys, n_threads)
    with nogil:
        found = key_range(problem)
    return found.max if found.any else -1, found.first_negative


def count(cnp.ndarray keys not None, cnp.ndarray weights, cnp.ndarray out not None, bint overwrite, int n_threads):
    """Count the keys, or sum their weights, into the contiguous ``out`` (int64, or float64 for sums): added to
    what it holds, or instead. Keys outside it are left out. Without memory for its tables it raises MemoryError,
    and ``out`` is as it was."""
    cdef CountProblem problem
    describe_keys(&problem, keys, n_threads)
    problem.n_bins = cnp.PyArray_DIM(out, 0)
    problem.overwrite = overwrite
    if weights is None:
        problem.counts = <int64_t*>cnp.PyArray_DATA(out)
    else:
        problem.weights = cnp.PyArray_BYTES(weights)
        problem.weight_stride = cnp.PyArray_STRIDE(weights, 0)
        problem.weight_dtype = dtype_code(weights)
        problem.weight_swapped = cnp.PyArray_ISBYTESWAPPED(weights)
        problem.sums = <double*>cnp.PyArray_DATA(out)
    with nogil:
        run_count(problem)
