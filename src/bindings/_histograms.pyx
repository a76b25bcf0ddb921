# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Histograms of numpy arrays; checks and messages are in ``upsweep.histograms``."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint64_t

from _dtypes cimport dtype_code, kDouble, kFloat, kInt64

cnp.import_array()

cdef extern from "common/signals.hpp":   # Ctrl-C ends a long call
    pass


cdef extern from "histogram/histogram.hpp" namespace "upsweep" nogil:
    cdef enum:
        kMaxAxes
    cdef cppclass HistogramProblem:
        HistogramProblem() except +
        int32_t dtype, swapped, n_threads, n_axes
        int64_t n
        int64_t* shape
        int64_t* strides
        const char* x
        const char* weights
        int64_t* weight_strides
        int32_t weight_dtype, weight_swapped
        const void* thresholds
        int64_t n_thresholds
        int64_t* counts
        double* sums
    cdef cppclass Extremes:
        double low, high
        int64_t low_signed, high_signed
        uint64_t low_unsigned, high_unsigned
        int32_t any_nan
    int32_t key_type(int32_t dtype)
    Extremes find_extremes_of "upsweep::find_extremes"(const HistogramProblem&) except +
    void run_histogram(const HistogramProblem&) except +
    void find_linear_thresholds_of "upsweep::find_linear_thresholds"(float, float, int64_t, float*)
    void find_linear_thresholds_of "upsweep::find_linear_thresholds"(double, double, int64_t, double*)


cdef int describe(HistogramProblem* problem, cnp.ndarray x, cnp.ndarray weights, int n_threads) except -1:
    """The order of elements does not matter: axes are sorted by x's strides, made positive, and merged."""
    cdef int axis, at, n_axes = 0
    cdef int64_t size, stride, weight_stride = 0
    problem.dtype = dtype_code(x)
    problem.swapped = cnp.PyArray_ISBYTESWAPPED(x)
    problem.n_threads = n_threads
    problem.x = cnp.PyArray_BYTES(x)
    if weights is not None:
        problem.weights = cnp.PyArray_BYTES(weights)
        problem.weight_dtype = dtype_code(weights)
        problem.weight_swapped = cnp.PyArray_ISBYTESWAPPED(weights)
    problem.n = cnp.PyArray_SIZE(x)
    for axis in range(cnp.PyArray_NDIM(x)):
        size = cnp.PyArray_DIM(x, axis)
        if size == 1:
            continue
        stride = cnp.PyArray_STRIDE(x, axis)
        if weights is not None:
            weight_stride = cnp.PyArray_STRIDE(weights, axis)
        if stride < 0:
            problem.x += (size - 1) * stride
            if weights is not None:
                problem.weights += (size - 1) * weight_stride
            stride, weight_stride = -stride, -weight_stride
        at = n_axes
        while at > 0 and problem.strides[at - 1] < stride:
            problem.shape[at], problem.strides[at] = problem.shape[at - 1], problem.strides[at - 1]
            problem.weight_strides[at] = problem.weight_strides[at - 1]
            at -= 1
        problem.shape[at], problem.strides[at], problem.weight_strides[at] = size, stride, weight_stride
        n_axes += 1
    at = 0
    for axis in range(1, n_axes):
        size = problem.shape[axis]
        if (problem.strides[at] == size * problem.strides[axis]
                and problem.weight_strides[at] == size * problem.weight_strides[axis]):
            problem.shape[at] *= size
        else:
            at += 1
            problem.shape[at] = size
        problem.strides[at], problem.weight_strides[at] = problem.strides[axis], problem.weight_strides[axis]
    if n_axes == 0:
        problem.shape[0] = 1
        problem.strides[0] = cnp.PyArray_ITEMSIZE(x)
        problem.weight_strides[0] = 0 if weights is None else cnp.PyArray_ITEMSIZE(weights)
    problem.n_axes = at + 1
    return 0


def find_extremes(cnp.ndarray x not None, int n_threads):
    """Return the least and the largest element without NaNs, and whether there is a NaN; x has at least one element."""
    cdef HistogramProblem problem
    cdef Extremes extremes
    describe(&problem, x, None, n_threads)
    with nogil:
        extremes = find_extremes_of(problem)
    cdef int32_t key = key_type(problem.dtype)
    if key == kFloat or key == kDouble:
        return extremes.low, extremes.high, extremes.any_nan != 0
    if key == kInt64:
        return extremes.low_signed, extremes.high_signed, False
    return extremes.low_unsigned, extremes.high_unsigned, False


def count(cnp.ndarray x not None, cnp.ndarray weights, cnp.ndarray thresholds not None, cnp.ndarray slots not None,
          int n_threads):
    """Count the elements, or sum their weights, by how many of the thresholds they reach, into the contiguous
    ``slots``, one more than thresholds: int64, uint64 for integer weights, or float64. Added to what they hold."""
    cdef HistogramProblem problem
    describe(&problem, x, weights, n_threads)
    if dtype_code(thresholds) != key_type(problem.dtype) or not cnp.PyArray_IS_C_CONTIGUOUS(thresholds):
        raise TypeError(f"thresholds: of dtype {thresholds.dtype}, for x of {x.dtype}")
    problem.thresholds = cnp.PyArray_DATA(thresholds)
    problem.n_thresholds = cnp.PyArray_DIM(thresholds, 0)
    if problem.n_thresholds < 1 or cnp.PyArray_DIM(slots, 0) != problem.n_thresholds + 1:
        raise ValueError(f"slots: {cnp.PyArray_DIM(slots, 0)} for {problem.n_thresholds} thresholds")
    if dtype_code(slots) == kDouble:
        problem.sums = <double*>cnp.PyArray_DATA(slots)
    else:
        problem.counts = <int64_t*>cnp.PyArray_DATA(slots)
    with nogil:
        run_histogram(problem)


def find_linear_thresholds(cnp.ndarray ends not None, cnp.ndarray thresholds not None):
    """The least numbers that ``(x - ends[0]) * bins / (ends[1] - ends[0])`` takes to 0, 1, ... bins - 1, then the next
    above ``ends[1]``, into the contiguous ``thresholds``, bins + 1 of the dtype of ends: float32 or float64."""
    cdef int64_t n_bins = cnp.PyArray_DIM(thresholds, 0) - 1
    cdef void* low = cnp.PyArray_GETPTR1(ends, 0)
    cdef void* high = cnp.PyArray_GETPTR1(ends, 1)
    cdef void* to = cnp.PyArray_DATA(thresholds)
    if dtype_code(ends) == kFloat:
        find_linear_thresholds_of((<float*>low)[0], (<float*>high)[0], n_bins, <float*>to)
    else:
        find_linear_thresholds_of((<double*>low)[0], (<double*>high)[0], n_bins, <double*>to)
