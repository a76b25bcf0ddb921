# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Scans of numpy arrays by compiled steps; checks and messages are above, in ``upsweep._cpu.user_scans``."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

cnp.import_array()


cdef extern from "user_scans.hpp" namespace "upsweep" nogil:
    enum:
        kMostColumnDims
    ctypedef void (*Steps)(const void*, const void*, void*, int64_t, int64_t, int64_t) noexcept
    ctypedef void (*Turn)(const char*, int64_t, char*, int64_t) noexcept
    cdef cppclass ScanOperand:
        ScanOperand()
        char* data
        int64_t time_stride
        int64_t strides[32]
        int32_t type, shared
    cdef cppclass StepsKernel:
        StepsKernel()
        Steps steps
        Turn turn
        int32_t bits, lanes, group, tiled, n_states
        vector[char] params
    ctypedef void (*Sums_ "upsweep::Sums")(const void*, const void*, const void*, void*, int64_t, int64_t) noexcept
    cdef cppclass SumsKernel:
        SumsKernel()
        Sums_ sums
        int32_t vectors_at_once
        vector[char] params
    cdef cppclass TimeParallel:
        TimeParallel() except +
        StepsKernel reduce
        SumsKernel sums
        int32_t kind, varies, decides, keeps_ties
        vector[double] matrix, start
    cdef cppclass UserScan:
        UserScan() except +
        StepsKernel kernel
        vector[ScanOperand] inputs, outputs
        int32_t n_dims
        int64_t dims[32]
        int64_t length, n_columns
        void* state
        double cost
        int64_t n_threads
    void c_scan_columns "upsweep::scan_columns"(const UserScan&) except +
    void c_scan_in_chunks "upsweep::scan_in_chunks"(const UserScan&, const TimeParallel&) except +


# Of OperandType, by the kind of a dtype and its bytes.
cdef dict TYPES = {("f", 4): 0, ("f", 8): 1, ("i", 1): 2, ("i", 2): 3, ("i", 4): 4, ("i", 8): 5, ("u", 1): 6, ("u", 2): 7,
                   ("u", 4): 8, ("u", 8): 9, ("b", 1): 6}
cdef dict KINDS = {"affine": 0, "max": 1, "min": 2, "logaddexp": 3, "argmax": 4, "argmin": 5}


cdef class Kernel:
    """A compiled function of steps; ``code`` is what it lives in, ``steps`` and ``turn`` are addresses."""

    cdef StepsKernel kernel
    cdef object code

    def __cinit__(self, *, steps, turn, code, int bits, int lanes, int group, int tiled,
                  int n_states):
        self.code = code
        self.kernel.steps, self.kernel.turn = <Steps><uintptr_t>steps, <Turn><uintptr_t>turn
        self.kernel.bits, self.kernel.lanes = bits, lanes
        self.kernel.group, self.kernel.tiled, self.kernel.n_states = group, tiled, n_states


cdef class Sums:
    """A compiled function of chunks' sums, and its numbers; ``code`` is what it lives in, ``sums`` its address."""

    cdef SumsKernel kernel
    cdef object code

    def __cinit__(self, *, sums, code, int vectors_at_once, cnp.ndarray params):
        self.code = code
        self.kernel.sums = <Sums_><uintptr_t>sums
        self.kernel.vectors_at_once = vectors_at_once
        set_params(self.kernel.params, params)


cdef int describe(vector[ScanOperand]& operands, arrays, shared, int n_dims) except -1:
    """Arrays of shape (time, *columns), in the scan's order, with their dtypes native and aligned."""
    cdef ScanOperand operand
    cdef cnp.ndarray array
    cdef cnp.dtype dtype
    cdef int d
    for array, same in zip(arrays, shared):
        operand.data = cnp.PyArray_BYTES(array)
        dtype = array.descr
        operand.type = TYPES[chr(dtype.kind), dtype.itemsize]
        operand.shared = same
        operand.time_stride = cnp.PyArray_STRIDE(array, 0)
        for d in range(n_dims):
            operand.strides[d] = cnp.PyArray_STRIDE(array, d + 1)
        operands.push_back(operand)
    return 0


cdef int set_params(vector[char]& numbers, cnp.ndarray params) except -1:
    cdef size_t n_bytes = cnp.PyArray_NBYTES(params)
    numbers.resize(n_bytes + 8)   # never without a byte
    memcpy(numbers.data(), cnp.PyArray_BYTES(params), n_bytes)
    return 0


def scan(Kernel kernel, params, inputs, input_shared, outputs, cnp.ndarray state, tuple dims, int64_t length, double cost,
         int n_threads, Kernel reduce=None, reduce_params=None, str kind="affine", bint varies=False, int decides=0,
         bint keeps_ties=True, matrix=(), start=(), Sums sums=None):
    """Run over all steps; writes ``outputs`` and ``state``, of shape (states, columns), C order, in the kernel's type.

    ``dims`` are the columns' sizes, the innermost last. With ``reduce`` time is parallel, and every column is on its own.
    """
    cdef UserScan problem
    cdef TimeParallel parallel
    problem.kernel = kernel.kernel
    set_params(problem.kernel.params, params)
    problem.n_dims = len(dims)
    problem.length, problem.cost, problem.n_threads = length, cost, n_threads
    problem.n_columns = 1
    for d, size in enumerate(dims):
        problem.dims[d] = size
        problem.n_columns *= problem.dims[d]
    problem.state = cnp.PyArray_DATA(state)
    describe(problem.inputs, inputs, input_shared, problem.n_dims)
    describe(problem.outputs, outputs, [0] * len(outputs), problem.n_dims)
    if length == 0 or problem.n_columns == 0:
        return
    if reduce is None:
        with nogil:
            c_scan_columns(problem)
        return
    parallel.reduce = reduce.kernel
    set_params(parallel.reduce.params, reduce_params)
    if sums is not None:
        parallel.sums = sums.kernel
    parallel.kind, parallel.varies = KINDS[kind], varies
    parallel.decides, parallel.keeps_ties = decides, keeps_ties
    for value in matrix:
        parallel.matrix.push_back(value)
    for value in start:
        parallel.start.push_back(value)
    with nogil:
        c_scan_in_chunks(problem, parallel)
