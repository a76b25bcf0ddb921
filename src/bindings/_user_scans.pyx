# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Scans of numpy arrays by compiled steps, for ``upsweep._backends.cpu.user_scan``, which has the checks."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

cnp.import_array()

cdef extern from "common/signals.hpp":   # Ctrl-C ends a long call
    pass


cdef extern from "user_scan/user_scan.hpp" namespace "upsweep" nogil:
    enum:
        kMostColumnDims
    ctypedef void (*Steps)(const void*, const void*, void*, int64_t, int64_t, int64_t) noexcept
    ctypedef void (*Turn)(const char*, int64_t, char*, int64_t) noexcept
    cdef cppclass ScanOperand:
        ScanOperand()
        char* data
        int64_t time_stride
        int64_t strides[32]
        int32_t type, shared, integer
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
        TimeParallel()
        StepsKernel reduce
        SumsKernel sums
        int32_t kind, varies, decides, keeps_ties
        vector[double] matrix, start
    cdef cppclass UserScan:
        UserScan()
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
cdef dict KINDS = {"affine": 0, "max": 1, "min": 2, "logaddexp": 3, "argmax": 4, "argmin": 5,
                   "integers": 6}


cdef class Kernel:
    """A compiled function of steps. ``steps`` and ``turn`` are addresses in ``code``; ``turn`` transposes tiles."""

    cdef StepsKernel kernel
    cdef object code

    def __cinit__(self, *, steps, turn, code, int bits, int lanes, int group, int tiled,
                  int n_states):
        self.code = code
        self.kernel.steps, self.kernel.turn = <Steps><uintptr_t>steps, <Turn><uintptr_t>turn
        self.kernel.bits, self.kernel.lanes = bits, lanes
        self.kernel.group, self.kernel.tiled, self.kernel.n_states = group, tiled, n_states


cdef class Sums:
    """A compiled function for the aggregates of chunks, at the address ``sums`` in ``code``, and its parameters."""

    cdef SumsKernel kernel
    cdef object code

    def __cinit__(self, *, sums, code, int vectors_at_once, cnp.ndarray params):
        self.code = code
        self.kernel.sums = <Sums_><uintptr_t>sums
        self.kernel.vectors_at_once = vectors_at_once
        set_params(self.kernel.params, params)


cdef int describe(vector[ScanOperand]& operands, arrays, shared, integers, int n_dims) except -1:
    """Arrays of shape (time, *columns), in the scan's order, with their dtypes native and aligned."""
    cdef ScanOperand operand
    cdef cnp.ndarray array
    cdef cnp.dtype dtype
    cdef int d
    for array, same, integer in zip(arrays, shared, integers):
        operand.data = cnp.PyArray_BYTES(array)
        dtype = array.descr
        operand.type = TYPES[chr(dtype.kind), dtype.itemsize]
        operand.shared, operand.integer = same, integer
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


cdef class Plan:
    """A scan over arrays of the shapes, strides and dtypes of ``inputs`` and ``outputs``, ready to run on others.

    ``dims`` are the sizes of the column axes, the innermost last. With ``reduce`` each column is cut into chunks of time
    that run in parallel. ``integer_inputs`` and ``integer_outputs`` say which operands are computed with as integers.
    """

    cdef UserScan problem
    cdef TimeParallel parallel
    cdef bint is_parallel
    cdef tuple code   # what the compiled functions live in

    def __cinit__(self, Kernel kernel, params, inputs, input_shared, integer_inputs, outputs, integer_outputs,
                  tuple dims, int64_t length, double cost, Kernel reduce=None, reduce_params=None, str kind="affine", bint varies=False, int decides=0,
                  bint keeps_ties=True, matrix=(), start=(), Sums sums=None):
        self.code = (kernel, reduce, sums)
        self.problem.kernel = kernel.kernel
        set_params(self.problem.kernel.params, params)
        self.problem.n_dims = len(dims)
        self.problem.length, self.problem.cost = length, cost
        self.problem.n_columns = 1
        for d, size in enumerate(dims):
            self.problem.dims[d] = size
            self.problem.n_columns *= self.problem.dims[d]
        describe(self.problem.inputs, inputs, input_shared, integer_inputs, self.problem.n_dims)
        describe(self.problem.outputs, outputs, [0] * len(outputs), integer_outputs, self.problem.n_dims)
        self.is_parallel = reduce is not None
        if reduce is None:
            return
        self.parallel.reduce = reduce.kernel
        set_params(self.parallel.reduce.params, reduce_params)
        if sums is not None:
            self.parallel.sums = sums.kernel
        self.parallel.kind, self.parallel.varies = KINDS[kind], varies
        self.parallel.decides, self.parallel.keeps_ties = decides, keeps_ties
        for value in matrix:
            self.parallel.matrix.push_back(value)
        for value in start:
            self.parallel.start.push_back(value)

    def run(self, list inputs, list outputs, offsets, cnp.ndarray state, int64_t n_threads):
        """Run over all steps; writes ``outputs`` and ``state``, of shape (states, columns), C order, in the kernel's type.

        ``offsets`` are the bytes from each array's address to its first step: of the inputs, then of the outputs.
        """
        cdef UserScan problem = self.problem   # a copy: several threads may run the plan at once
        cdef cnp.ndarray array
        cdef int64_t offset
        cdef size_t n, n_inputs = problem.inputs.size(), n_outputs = problem.outputs.size()
        if <size_t>len(inputs) != n_inputs or <size_t>len(outputs) != n_outputs or len(offsets) != len(inputs) + len(outputs):
            raise ValueError("other numbers of arrays than those of the plan")
        for n in range(n_inputs):
            array, offset = inputs[n], offsets[n]
            problem.inputs[n].data = cnp.PyArray_BYTES(array) + offset
        for n in range(n_outputs):
            array, offset = outputs[n], offsets[n_inputs + n]
            problem.outputs[n].data = cnp.PyArray_BYTES(array) + offset
        problem.state, problem.n_threads = cnp.PyArray_DATA(state), n_threads
        with nogil:
            if self.is_parallel:
                c_scan_in_chunks(problem, self.parallel)
            else:
                c_scan_columns(problem)


cdef class Spans:
    """The byte ranges of arrays relative to their addresses: whether outputs overlap inputs or each other.

    ``alike`` says of each output and each input whether they are of one dtype, shape and strides: such may be the same.
    """

    cdef vector[int64_t] lows, highs
    cdef vector[char] alike
    cdef Py_ssize_t n_inputs

    def __cinit__(self, inputs, outputs, alike):
        cdef cnp.ndarray array
        cdef int64_t low, high, reach
        cdef int d
        self.n_inputs = len(inputs)
        for array in (*inputs, *outputs):
            low, high = 0, array.descr.itemsize
            for d in range(cnp.PyArray_NDIM(array)):
                reach = (cnp.PyArray_DIM(array, d) - 1) * cnp.PyArray_STRIDE(array, d)
                if reach < 0:
                    low += reach
                else:
                    high += reach
            empty = cnp.PyArray_SIZE(array) == 0
            self.lows.push_back(0 if empty else low)
            self.highs.push_back(0 if empty else high)
        for flag in alike:
            self.alike.push_back(flag)

    def are_apart(self, list inputs, list outputs):
        """Return whether the outputs can be written while the inputs are read."""
        cdef Py_ssize_t n, other
        cdef vector[int64_t] addresses
        cdef cnp.ndarray array
        for array in inputs:
            addresses.push_back(<int64_t><uintptr_t>cnp.PyArray_DATA(array))
        for array in outputs:
            addresses.push_back(<int64_t><uintptr_t>cnp.PyArray_DATA(array))
        for n in range(self.n_inputs, <Py_ssize_t>addresses.size()):
            for other in range(n):
                if (addresses[n] + self.lows[n] >= addresses[other] + self.highs[other]
                        or addresses[other] + self.lows[other] >= addresses[n] + self.highs[n]):
                    continue
                if (other >= self.n_inputs or addresses[n] != addresses[other]
                        or not self.alike[(n - self.n_inputs) * self.n_inputs + other]):
                    return False
        return True
