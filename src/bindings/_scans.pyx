# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Scans of numpy arrays: fills the problem's description and runs it without the GIL.

``upsweep._core.scan`` has checked the arguments. The ``plain_*`` functions are the fast path for the plainest calls,
which skips those layers; they return None for any other call.
"""

cimport numpy as cnp
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsDouble, PyLong_AsLongAndOverflow, PyLong_CheckExact
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


cdef void convert_run(const char* source, int64_t source_stride, int32_t source_dtype, bint swapped, char* target,
                      int64_t target_stride, int32_t target_dtype, int64_t length) noexcept nogil:
    cdef double numbers[1024]
    cdef int64_t at, n
    for at in range(0, length, 1024):
        n = min(length - at, 1024)
        gather(source + at * source_stride, source_stride, n, source_dtype, swapped, numbers)
        scatter(numbers, n, target_dtype, target + at * target_stride, target_stride)


def convert(cnp.ndarray source not None, cnp.ndarray target not None):
    """Write real numbers to an array of floats in native byte order, of the same shape: numpy's conversions from and to
    float16 take 3 to 70 ns an element. Fastest for two arrays in C order."""
    cdef int axis = cnp.PyArray_NDIM(target) - 1, other
    cdef cnp.flatiter read, written
    cdef int32_t source_dtype = dtype_code(source), target_dtype = dtype_code(target)
    cdef bint swapped = cnp.PyArray_ISBYTESWAPPED(source)
    if cnp.PyArray_IS_C_CONTIGUOUS(source) and cnp.PyArray_IS_C_CONTIGUOUS(target):
        with nogil:
            convert_run(cnp.PyArray_BYTES(source), cnp.PyArray_ITEMSIZE(source), source_dtype, swapped,
                        cnp.PyArray_BYTES(target), cnp.PyArray_ITEMSIZE(target), target_dtype, cnp.PyArray_SIZE(target))
        return
    # A step of the iterators costs as much as tens of elements.
    if cnp.PyArray_DIM(target, axis) < 32:
        for other in range(axis):
            if cnp.PyArray_DIM(target, other) > cnp.PyArray_DIM(target, axis):
                axis = other
    read, written = cnp.PyArray_IterAllButAxis(source, &axis), cnp.PyArray_IterAllButAxis(target, &axis)
    with nogil:
        while cnp.PyArray_ITER_NOTDONE(written):
            convert_run(<char*>cnp.PyArray_ITER_DATA(read), cnp.PyArray_STRIDE(source, axis), source_dtype, swapped,
                        <char*>cnp.PyArray_ITER_DATA(written), cnp.PyArray_STRIDE(target, axis), target_dtype,
                        cnp.PyArray_DIM(target, axis))
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


cdef int plain_axis(object axis, int ndim) noexcept:
    # The axis counted from the front, or -1 unless it is a Python integer in range.
    cdef int overflow = 0
    cdef long index
    if not PyLong_CheckExact(axis):
        return -1
    index = PyLong_AsLongAndOverflow(axis, &overflow)
    if overflow or not -ndim <= index < ndim:
        return -1
    return <int>(index if index >= 0 else index + ndim)


cdef inline bint takes(cnp.ndarray out, cnp.ndarray x) noexcept:
    # Whether a result of x's shape and dtype may be written to a plain array: it is x, or shares no memory with it.
    cdef char* begin = cnp.PyArray_BYTES(out)
    cdef char* other = cnp.PyArray_BYTES(x)
    cdef int64_t n_bytes = cnp.PyArray_NBYTES(x)
    return (cnp.PyArray_ISWRITEABLE(out) and cnp.PyArray_TYPE(out) == cnp.PyArray_TYPE(x)
            and cnp.PyArray_SAMESHAPE(out, x)
            and (begin == other or begin + n_bytes <= other or other + n_bytes <= begin))


cdef void describe_plain(Array* to, cnp.ndarray array, int64_t length, int64_t inner, bint reverse) noexcept:
    # An array in C order as the axes (outer, length, inner), of which the second is that of the scan.
    cdef int64_t item = cnp.PyArray_ITEMSIZE(array)
    to.data = cnp.PyArray_BYTES(array)
    to.dtype = kFloat if item == 4 else kDouble
    to.time_stride = item * inner
    to.column_stride = item * length   # of the only other axis, if inner is 1
    to.batch_strides[0] = item * inner * length
    to.batch_strides[1] = item
    if reverse:
        to.data += (length - 1) * to.time_stride
        to.time_stride = -to.time_stride
        if inner == 1 and length > 1:   # lines in the direction of their steps, as collapse_axes has them
            to.data += cnp.PyArray_NBYTES(array) - item * length
            to.column_stride = -to.column_stride


cdef object run_plain(cnp.ndarray x, cnp.ndarray gates, double gamma, object axis, object out, bint reverse, bint flush,
                      int n_threads):
    # Returns None, like its callers, for an axis or out that is not of the plainest kind, or wrong.
    cdef ScanProblem problem
    cdef int dim, ndim = cnp.PyArray_NDIM(x), at = plain_axis(axis, ndim)
    cdef int64_t length, inner = 1
    cdef cnp.ndarray target
    if at < 0:
        return None
    if out is None:
        target = cnp.PyArray_EMPTY(ndim, cnp.PyArray_DIMS(x), cnp.PyArray_TYPE(x), 0)
    elif is_plain(out) and takes(<cnp.ndarray>out, x) and (gates is None or takes(<cnp.ndarray>out, gates)):
        target = <cnp.ndarray>out
    else:
        return None
    length = cnp.PyArray_DIM(x, at)
    for dim in range(at + 1, ndim):
        inner *= cnp.PyArray_DIM(x, dim)
    problem.length = length
    problem.columns = cnp.PyArray_SIZE(x) // (length * inner)
    describe_plain(&problem.x, x, length, inner, reverse)
    describe_plain(&problem.out, target, length, inner, reverse)
    if gates is None:
        problem.gamma.data = <char*>&gamma
    else:
        describe_plain(&problem.gates, gates, length, inner, reverse)
    problem.flush = flush
    problem.n_threads = n_threads
    if inner > 1 or length == 1:
        problem.n_batch = 2
        problem.batch_shape[0] = problem.columns
        problem.batch_shape[1] = inner
        collapse_axes(problem)
    if cnp.PyArray_SIZE(x) < 4096:   # below this, releasing the GIL costs more than the scan
        run_scan(problem)
    else:
        with nogil:
            run_scan(problem)
    return target


def plain_constant(object x, object gamma, object axis, object out, bint reverse, int n_threads):
    """Return a discounted sum, or None unless x is a plain array, gamma a Python number, and out None or such that the
    result may be written to it as it is."""
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
    return run_plain(<cnp.ndarray>x, None, factor, axis, out, reverse, True, n_threads)


def plain_sum(object x, object axis, object out, bint reverse, int n_threads):
    """Return a cumulative sum of floats, or None unless x is a plain array, and out as for plain_constant."""
    if not is_plain(x):
        return None
    return run_plain(<cnp.ndarray>x, None, 1.0, axis, out, reverse, False, n_threads)


def plain_gated(object gates, object tokens, object axis, object out, bint reverse, int n_threads):
    """Return a gated recurrence, or None unless both are plain arrays of one dtype and shape, and out as for
    plain_constant."""
    if not (is_plain(gates) and is_plain(tokens)):
        return None
    cdef cnp.ndarray a = <cnp.ndarray>gates, x = <cnp.ndarray>tokens
    if cnp.PyArray_TYPE(a) != cnp.PyArray_TYPE(x) or not cnp.PyArray_SAMESHAPE(a, x):
        return None
    return run_plain(x, a, 1.0, axis, out, reverse, True, n_threads)
