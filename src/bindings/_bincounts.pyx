# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Counts of integer keys in numpy arrays. ``upsweep._core.bincount`` has the checks and messages.

``plain`` is the fast path for the plainest calls, which skips those layers; it returns None for any other call.
"""

cimport numpy as cnp
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.memory cimport unique_ptr

from _dtypes cimport dtype_code, kBool, kUInt8

cnp.import_array()

cdef extern from "common/signals.hpp":   # Ctrl-C ends a long call
    pass


cdef extern from "bincount/bincount.hpp" namespace "upsweep" nogil:
    enum:
        kMaxRowDims
    cdef enum Summand:
        kOnes, kReals, kIntegers
    cdef cppclass CountProblem:
        CountProblem() except +
        const char* keys
        int64_t key_stride
        int32_t key_dtype, key_swapped
        int64_t n
        int32_t summand
        const char* weights
        int64_t weight_stride, sum_stride, n_sums
        int32_t weight_dtype, weight_swapped
        int64_t n_rows
        int32_t n_dims
        int64_t dims[64]
        int64_t key_row_strides[64]
        int64_t weight_row_strides[64]
        int64_t n_bins, n_bins_least
        int32_t drop, n_threads
    cdef cppclass BinInfo:
        int64_t n_bins
        int32_t outside
    cdef cppclass _Counter "upsweep::Counter":
        _Counter(const CountProblem&) except +
        BinInfo scan_keys() except +
        void write(void*, bint) except +
    int64_t first_outside(const CountProblem&, int64_t) except +
    int64_t count_outside(const CountProblem&, int64_t) except +
    int64_t bins_of_few(const char*, int32_t, int64_t)
    void count_few(const char*, int32_t, int64_t, int64_t*, int64_t)
    void sum_few(const char*, int32_t, int64_t, const double*, double*, int64_t)


cdef int32_t key_code(cnp.ndarray keys) except -1:
    cdef int32_t dtype = dtype_code(keys)
    return kUInt8 if dtype == kBool else dtype


cdef class Counter:
    """One count: keys (..., n), and weights (..., n), or (..., n, k) with `with_sums`, or None.

    Call `scan_keys` before `write`.
    """

    cdef CountProblem problem
    cdef unique_ptr[_Counter] counter
    cdef object _arrays   # keeps the arrays alive

    def __cinit__(self, cnp.ndarray keys not None, cnp.ndarray weights, *, bint with_sums, bint integers,
                  int64_t n_bins, int64_t least, bint drop, int n_threads):
        cdef CountProblem* p = &self.problem
        cdef int dim, n_dims = cnp.PyArray_NDIM(keys) - 1
        self._arrays = keys, weights
        p.keys = cnp.PyArray_BYTES(keys)
        p.key_stride = cnp.PyArray_STRIDE(keys, n_dims)
        p.n = cnp.PyArray_DIM(keys, n_dims)
        p.key_dtype = key_code(keys)
        p.key_swapped = cnp.PyArray_ISBYTESWAPPED(keys)
        p.n_dims = n_dims
        p.n_rows = 1
        for dim in range(n_dims):
            p.dims[dim] = cnp.PyArray_DIM(keys, dim)
            p.key_row_strides[dim] = cnp.PyArray_STRIDE(keys, dim)
            p.n_rows *= p.dims[dim]
        if weights is not None:
            p.summand = kIntegers if integers else kReals
            p.weights = cnp.PyArray_BYTES(weights)
            p.weight_stride = cnp.PyArray_STRIDE(weights, n_dims)
            p.weight_dtype = dtype_code(weights)
            p.weight_swapped = cnp.PyArray_ISBYTESWAPPED(weights)
            for dim in range(n_dims):
                p.weight_row_strides[dim] = cnp.PyArray_STRIDE(weights, dim)
            if with_sums:
                p.n_sums = cnp.PyArray_DIM(weights, n_dims + 1)
                p.sum_stride = cnp.PyArray_STRIDE(weights, n_dims + 1)
        p.n_bins = n_bins
        p.n_bins_least = least
        p.drop = drop
        p.n_threads = n_threads
        self.counter.reset(new _Counter(self.problem))

    def scan_keys(self):
        """Return the number of bins, and whether there are keys outside them that must be refused."""
        cdef BinInfo info
        with nogil:
            info = self.counter.get().scan_keys()
        return info.n_bins, info.outside != 0

    def write(self, cnp.ndarray result not None, bint overwrite):
        """Write counts (int64) or sums (float64, complex128, 64-bit integers) to the contiguous ``result``,
        (..., bins) or (..., bins, k), or add them. Raises MemoryError if there is no memory for the tables, and leaves
        ``result`` unchanged then."""
        cdef void* data = cnp.PyArray_DATA(result)
        with nogil:
            self.counter.get().write(data, overwrite)

    def first_outside(self, int64_t n_bins):
        """Return the position, in C order, of the first key that is negative or at least `n_bins`; -1 for none."""
        cdef int64_t first
        with nogil:
            first = first_outside(self.problem, n_bins)
        return first

    def count_outside(self, int64_t n_bins):
        """Return how many keys are negative or at least `n_bins`."""
        cdef int64_t n
        with nogil:
            n = count_outside(self.problem, n_bins)
        return n


# Up to MOST_PLAIN_KEYS keys are copied where the loops cannot read them in place: that costs less than the layers.
cdef int64_t MOST_PLAIN_KEYS = 1 << 17, MOST_PLAIN_BINS = 1 << 20, MOST_IN_ORDER = 4096


cdef object as_array(object value):
    """Convert a list to an array if possible; the layers above have the message otherwise."""
    if not PyList_CheckExact(value):
        return value
    try:
        return cnp.PyArray_FROM_O(value)
    except ValueError:
        return value


cdef bint is_row(object value) noexcept:
    return cnp.PyArray_CheckExact(value) and cnp.PyArray_NDIM(<cnp.ndarray>value) == 1


cdef cnp.ndarray as_plain(cnp.ndarray row, int type_number):
    """Return the row aligned, in native byte order, contiguous and of this type: itself or a copy."""
    if cnp.PyArray_TYPE(row) == type_number and cnp.PyArray_ISCARRAY_RO(row):
        return row
    return cnp.PyArray_FROMANY(row, type_number, 1, 1, cnp.NPY_ARRAY_CARRAY_RO)


def plain(object x, object weights, object minlength, int n_threads):
    """Return counts of one row of keys, or sums of real weights in float64; None for any other call."""
    cdef int64_t n, n_bins, least
    cdef int32_t dtype
    cdef int number
    cdef cnp.npy_intp size
    cdef CountProblem problem
    cdef unique_ptr[_Counter] counter
    cdef BinInfo info
    cdef cnp.ndarray keys, result, summands = None
    x, weights = as_array(x), as_array(weights)
    if not is_row(x) or not PyLong_CheckExact(minlength) or not 0 <= minlength <= MOST_PLAIN_BINS:
        return None
    keys = <cnp.ndarray>x
    least = minlength
    n = cnp.PyArray_DIM(keys, 0)
    number = cnp.PyArray_TYPE(keys)
    if number > cnp.NPY_ULONGLONG or n > MOST_PLAIN_KEYS:
        return None
    if weights is not None:
        if not is_row(weights) or cnp.PyArray_DIM(<cnp.ndarray>weights, 0) != n:
            return None
        summands = <cnp.ndarray>weights
        if (<cnp.dtype>summands.descr).kind not in b"biuf" or cnp.PyArray_ITEMSIZE(summands) > 8:
            return None
    if n == 0:   # nothing to sum: numpy answers with integers
        size = least
        return cnp.PyArray_ZEROS(1, &size, cnp.NPY_INTP, 0)
    keys = as_plain(keys, number)
    if summands is not None:
        summands = as_plain(summands, cnp.NPY_DOUBLE)
    dtype = key_code(keys)
    if summands is None and n > MOST_IN_ORDER:
        problem.keys = cnp.PyArray_BYTES(keys)
        problem.key_stride = cnp.PyArray_ITEMSIZE(keys)
        problem.key_dtype = dtype
        problem.n = n
        problem.n_bins_least = least
        problem.n_threads = n_threads
        with nogil:
            counter.reset(new _Counter(problem))
            info = counter.get().scan_keys()
        if info.outside or info.n_bins > MOST_PLAIN_BINS:
            return None   # the layers above have the message
        size = info.n_bins
        result = cnp.PyArray_ZEROS(1, &size, cnp.NPY_INTP, 0)
        with nogil:
            counter.get().write(cnp.PyArray_DATA(result), False)
        return result
    if n > MOST_IN_ORDER:
        with nogil:
            n_bins = bins_of_few(cnp.PyArray_BYTES(keys), dtype, n)
    else:   # releasing the GIL would cost a good part of the work
        n_bins = bins_of_few(cnp.PyArray_BYTES(keys), dtype, n)
    if n_bins < 0 or n_bins > MOST_PLAIN_BINS:
        return None
    size = max(n_bins, least)
    result = cnp.PyArray_ZEROS(1, &size, cnp.NPY_INTP if summands is None else cnp.NPY_DOUBLE, 0)
    if summands is None:
        count_few(cnp.PyArray_BYTES(keys), dtype, n, <int64_t*>cnp.PyArray_DATA(result), n_bins)
        return result
    cdef const double* terms = <const double*>cnp.PyArray_DATA(summands)
    cdef double* sums = <double*>cnp.PyArray_DATA(result)
    if n > MOST_IN_ORDER:
        with nogil:
            sum_few(cnp.PyArray_BYTES(keys), dtype, n, terms, sums, n_bins)
    else:
        sum_few(cnp.PyArray_BYTES(keys), dtype, n, terms, sums, n_bins)
    return result
