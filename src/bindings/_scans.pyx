# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Scans of numpy arrays: fills the problem's description and runs it without the GIL.

``upsweep._core.scan`` has checked the arguments. The ``plain_*`` functions are the fast path for the plainest calls,
which skips those layers; they return None for any other call.
"""

cimport numpy as cnp
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsDouble, PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t

from _dtypes cimport dtype_code, gather, kDouble, kFloat, scatter

cnp.import_array()

cdef extern from "common/signals.hpp":   # Ctrl-C ends a long call
    pass

cdef extern from *:
    """
    static const char* upsweep_level() { return UPSWEEP_LEVEL; }
    """
    const char* upsweep_level() noexcept nogil

LEVEL = upsweep_level().decode()   # the instruction set that this module was built for


cdef extern from "scan/scan.hpp" namespace "upsweep" nogil:
    enum:
        kMaxDims
    cdef enum Accumulator:
        kReal, kComplex, kInteger
    cdef cppclass Array:
        char* data
        int32_t dtype
        int32_t swapped
        int64_t time_stride
        int64_t column_stride
        int64_t batch_strides[64]
    cdef cppclass ScanProblem:
        ScanProblem() except +
        int64_t length
        int64_t columns
        int32_t n_batch
        int64_t batch_shape[64]
        Array x, gates, out, reset, gamma, initial, final_state, multiplier
        int32_t accumulator, exclusive, flush, n_threads
        int64_t window
    void run_scan(const ScanProblem&) except +
    void run_window(const ScanProblem&) except +
    void collapse_axes(ScanProblem&)


cdef int describe(Array* to, object value, int axis, bint has_axis, bint reverse) except -1:
    # has_axis: whether the array has the scan axis; gamma, initial and final_state lack it.
    if value is None:
        return 0
    cdef cnp.ndarray array = value
    cdef int dim, at = 0
    cdef int64_t stride
    to.data = cnp.PyArray_BYTES(array)
    to.dtype = dtype_code(array)
    to.swapped = cnp.PyArray_ISBYTESWAPPED(array)
    for dim in range(cnp.PyArray_NDIM(array)):
        stride = cnp.PyArray_STRIDE(array, dim)
        if has_axis and dim == axis:
            to.time_stride = stride
            if reverse and cnp.PyArray_DIM(array, dim) > 0:
                to.data += (cnp.PyArray_DIM(array, dim) - 1) * stride
                to.time_stride = -stride
        else:
            to.batch_strides[at] = stride
            at += 1
    return 0


def scan(cnp.ndarray x not None, gates, gamma, initial, reset, out, final_state, multiplier, *, int axis,
         bint reverse, bint exclusive, bint flush, int64_t window, int n_threads, int accumulator):
    """Run one scan. Arrays with the axis have x's shape; gamma, initial, final_state and multiplier lack
    the axis. multiplier holds the type that states are multiplied in."""
    cdef ScanProblem problem
    cdef int dim
    for dim in range(cnp.PyArray_NDIM(x)):
        if dim == axis:
            problem.length = cnp.PyArray_DIM(x, dim)
        else:
            problem.batch_shape[problem.n_batch] = cnp.PyArray_DIM(x, dim)
            problem.n_batch += 1
    describe(&problem.x, x, axis, True, reverse)
    describe(&problem.gates, gates, axis, True, reverse)
    describe(&problem.reset, reset, axis, True, reverse)
    describe(&problem.out, out, axis, True, reverse)
    describe(&problem.gamma, gamma, axis, False, reverse)
    describe(&problem.initial, initial, axis, False, reverse)
    describe(&problem.final_state, final_state, axis, False, reverse)
    describe(&problem.multiplier, multiplier, axis, False, reverse)
    problem.accumulator = accumulator
    problem.exclusive = exclusive
    problem.flush = flush
    problem.n_threads = n_threads
    problem.window = window
    with nogil:
        collapse_axes(problem)
        if window > 0:
            run_window(problem)
        else:
            run_scan(problem)


def convert(cnp.ndarray source not None, cnp.ndarray target not None):
    """Write real numbers to an array of floats in native byte order, of the same shape: numpy's conversions from and to
    float16 take 3 to 70 ns an element."""
    cdef int axis = cnp.PyArray_NDIM(target) - 1
    cdef cnp.flatiter read, written
    cdef int32_t source_dtype = dtype_code(source), target_dtype = dtype_code(target)
    cdef bint swapped = cnp.PyArray_ISBYTESWAPPED(source)
    cdef int64_t length, source_stride, target_stride, at, n
    cdef double numbers[1024]
    if axis < 0 or cnp.PyArray_SIZE(target) == 0:
        target[...] = source
        return
    read, written = cnp.PyArray_IterAllButAxis(source, &axis), cnp.PyArray_IterAllButAxis(target, &axis)
    length = cnp.PyArray_DIM(target, axis)
    source_stride, target_stride = cnp.PyArray_STRIDE(source, axis), cnp.PyArray_STRIDE(target, axis)
    with nogil:
        while cnp.PyArray_ITER_NOTDONE(written):
            for at in range(0, length, 1024):
                n = min(length - at, 1024)
                gather(<char*>cnp.PyArray_ITER_DATA(read) + at * source_stride, source_stride, n, source_dtype, swapped,
                       numbers)
                scatter(numbers, n, target_dtype, <char*>cnp.PyArray_ITER_DATA(written) + at * target_stride,
                        target_stride)
            cnp.PyArray_ITER_NEXT(read)
            cnp.PyArray_ITER_NEXT(written)


cdef inline bint is_plain(object value):
    # Exactly an ndarray of float32 or float64 in C order, aligned, native, with at least one axis.
    if not cnp.PyArray_CheckExact(value):
        return False
    cdef cnp.ndarray array = <cnp.ndarray>value
    cdef int number = cnp.PyArray_TYPE(array)
    return ((number == cnp.NPY_FLOAT or number == cnp.NPY_DOUBLE) and cnp.PyArray_ISCARRAY_RO(array)
            and cnp.PyArray_NDIM(array) > 0 and cnp.PyArray_SIZE(array) > 0)


cdef void describe_plain(Array* to, cnp.ndarray array, int64_t length, bint reverse) noexcept:
    cdef int64_t item = cnp.PyArray_ITEMSIZE(array)
    to.data = cnp.PyArray_BYTES(array)
    to.dtype = kFloat if item == 4 else kDouble
    to.time_stride = item
    to.column_stride = item * length
    if reverse:
        to.data += (length - 1) * item
        to.time_stride = -item


cdef object run_plain(cnp.ndarray x, object gates, double gamma, bint reverse, bint flush, int n_threads):
    cdef ScanProblem problem
    cdef int ndim = cnp.PyArray_NDIM(x)
    cdef int64_t length = cnp.PyArray_DIM(x, ndim - 1)
    cdef cnp.ndarray out = cnp.PyArray_EMPTY(ndim, cnp.PyArray_DIMS(x), cnp.PyArray_TYPE(x), 0)
    problem.length = length
    problem.columns = cnp.PyArray_SIZE(x) // length
    describe_plain(&problem.x, x, length, reverse)
    describe_plain(&problem.out, out, length, reverse)
    if gates is None:
        problem.gamma.data = <char*>&gamma
    else:
        describe_plain(&problem.gates, gates, length, reverse)
    problem.flush = flush
    problem.n_threads = n_threads
    if cnp.PyArray_SIZE(x) < 4096:   # below this, releasing the GIL costs more than the scan
        run_scan(problem)
    else:
        with nogil:
            run_scan(problem)
    return out


def plain_constant(object x, object gamma, bint reverse, int n_threads):
    """Return a discounted sum along the last axis, or None unless x is a plain array and gamma a Python number."""
    cdef double factor
    if not is_plain(x):
        return None
    if PyFloat_CheckExact(gamma):
        factor = PyFloat_AS_DOUBLE(gamma)
    elif PyLong_CheckExact(gamma):
        try:
            factor = PyLong_AsDouble(gamma)
        except OverflowError:
            return None   # the layers above have the message
    else:
        return None
    return run_plain(<cnp.ndarray>x, None, factor, reverse, True, n_threads)


def plain_sum(object x, bint reverse, int n_threads):
    """Return a cumulative sum of floats along the last axis, or None unless x is a plain array."""
    if not is_plain(x):
        return None
    return run_plain(<cnp.ndarray>x, None, 1.0, reverse, False, n_threads)


def plain_gated(object gates, object tokens, bint reverse, int n_threads):
    """Return a gated recurrence along the last axis, or None unless both are plain arrays of one dtype and shape."""
    if not (is_plain(gates) and is_plain(tokens)):
        return None
    cdef cnp.ndarray a = <cnp.ndarray>gates, x = <cnp.ndarray>tokens
    if cnp.PyArray_TYPE(a) != cnp.PyArray_TYPE(x) or not cnp.PyArray_SAMESHAPE(a, x):
        return None
    return run_plain(x, a, 1.0, reverse, True, n_threads)
