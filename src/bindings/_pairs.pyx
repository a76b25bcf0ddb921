# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Reductions over pairs of numpy arrays by compiled tiles, for ``upsweep._backends.cpu.pairs``, which has the checks."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

cnp.import_array()

cdef extern from "common/signals.hpp":   # Ctrl-C ends a long call
    pass


cdef extern from "pairs/pairs.hpp" namespace "upsweep" nogil:
    enum:
        kMostBatchDims
    ctypedef void (*Tile)(const void*, int64_t, const void*, int64_t, const void*, int64_t, int64_t, void*,
                         void*) noexcept
    ctypedef void (*Prepare)(void*, int64_t, const void*, int64_t) noexcept
    cdef cppclass PairOperand:
        PairOperand()
        const char* data
        int64_t stride, feature_stride
        int64_t batch_strides[32]
        int64_t dim, offset
    cdef cppclass PairKernel:
        PairKernel()
        Tile rows_tile, columns_tile
        Prepare prepare_records, prepare_lanes
        int32_t kind, bits, accumulator_bits, lanes, largest, indexed, n_sums, inserts
        int64_t dim, k, row_width, column_width, param_width, n_prepared, workspace
        double cost
    cdef cppclass PairPlan:
        PairPlan() except +
        double cost
        int32_t lanes_are_columns
        vector[int64_t] groups
    cdef cppclass PairProblem:
        PairProblem() except +
        const PairKernel* kernel
        vector[PairOperand] rows, columns, params
        int64_t n_rows, n_columns
        int32_t n_batch_dims
        int64_t batch[32]
        vector[const PairPlan*] plans
        void* values
        int64_t* indices
        int64_t n_threads
    void make_dense_plan(const PairKernel&, int64_t, int64_t, PairPlan&) except +
    void make_plan(const PairKernel&, int64_t, int64_t, const int64_t*, const int64_t*, const int64_t*, int64_t,
                   PairPlan&) except +
    void reduce_pairs(const PairProblem&) except +


cdef dict KINDS = {"sum": 0, "logsumexp": 1, "sumsoftmaxweight": 2, "best": 3, "smallest": 4}


cdef class Plan:
    """The schedule of one set of ranges, for kernels with the same number of lanes."""

    cdef PairPlan plan

    @property
    def lanes_are_columns(self):
        """Whether vector lanes hold columns, because there are few rows."""
        return self.plan.lanes_are_columns != 0


cdef class Kernel:
    """A compiled reduction: its tiles, and their properties for the driver.

    ``components`` lists, for rows, columns and parameters, (position, dim) in the order of the packed record. ``compile``
    is called when the first problem needs a tile. It takes "rows" or "columns", which says what the lanes hold, and returns
    the address of the tile, the address of the function that computes ``n_prepared`` numbers of each column, the bytes of
    workspace, and the object that owns the code.
    """

    cdef PairKernel kernel
    cdef object compile
    cdef list keep
    cdef vector[int64_t] positions[3]
    cdef vector[int64_t] dims[3]
    cdef readonly bint wants_values, wants_indices
    cdef readonly int64_t n_values

    def __cinit__(self, *, compile, str kind, int bits, int accumulator_bits, int lanes, bint largest, bint indexed,
                  int n_sums, bint inserts, int64_t dim, int64_t k, double cost, int64_t n_prepared, components, bint wants_values,
                  bint wants_indices, int64_t n_values):
        cdef PairKernel* kernel = &self.kernel
        cdef int64_t widths[3]
        kernel.kind = KINDS[kind]
        kernel.bits, kernel.accumulator_bits, kernel.lanes = bits, accumulator_bits, lanes
        kernel.largest, kernel.indexed, kernel.n_sums, kernel.inserts = largest, indexed, n_sums, inserts
        kernel.dim, kernel.k, kernel.cost, kernel.n_prepared = dim, k, cost, n_prepared
        for part in range(3):
            widths[part] = 0
            for position, size in components[part]:
                self.positions[part].push_back(position)
                self.dims[part].push_back(size)
                widths[part] += size
        kernel.row_width, kernel.column_width, kernel.param_width = widths[0], widths[1], widths[2]
        self.compile, self.keep = compile, []
        self.wants_values, self.wants_indices, self.n_values = wants_values, wants_indices, n_values

    def plan(self, int64_t n_rows, int64_t n_columns, triple):
        """Return the schedule of a triple of ranges, three int64 arrays in C order."""
        cdef Plan result = Plan()
        cdef cnp.ndarray blocks = triple[0], slices = triple[1], columns = triple[2]
        cdef int64_t n_blocks = cnp.PyArray_DIM(slices, 0)
        with nogil:
            make_plan(self.kernel, n_rows, n_columns, <const int64_t*>cnp.PyArray_DATA(blocks),
                      <const int64_t*>cnp.PyArray_DATA(slices), <const int64_t*>cnp.PyArray_DATA(columns), n_blocks,
                      result.plan)
        return result

    def run(self, arrays, int64_t n_rows, int64_t n_columns, tuple batch, plans, int n_threads):
        """Return values and indices, each (batch, rows, ...), or None for one that the reduction does not have.

        ``arrays`` are ndarrays of the kernel's dtype whose shapes have been checked. ``plans`` is one schedule for all batch
        entries, a list with one for each, or None for all columns in every row.
        """
        cdef PairProblem problem
        cdef PairPlan dense
        cdef int n_dims = len(batch), d
        cdef cnp.npy_intp shape[34]
        cdef int64_t n_pairs = n_rows
        cdef object values = None, indices = None
        cdef Plan plan
        cdef list copies = []
        problem.kernel = &self.kernel
        problem.n_rows, problem.n_columns, problem.n_threads = n_rows, n_columns, n_threads
        problem.n_batch_dims = n_dims
        for d in range(n_dims):
            problem.batch[d] = batch[d]
            shape[d] = batch[d]
            n_pairs *= problem.batch[d]
        shape[n_dims], shape[n_dims + 1] = n_rows, self.n_values
        self.describe(problem.rows, arrays, 0, n_rows, n_dims, copies)
        self.describe(problem.columns, arrays, 1, n_columns, n_dims, copies)
        self.describe(problem.params, arrays, 2, 1, n_dims, copies)
        if self.wants_values:
            values = cnp.PyArray_EMPTY(n_dims + 2, shape, cnp.NPY_FLOAT if self.kernel.bits == 32 else cnp.NPY_DOUBLE, 0)
            problem.values = cnp.PyArray_DATA(<cnp.ndarray>values)
        if self.wants_indices:
            indices = cnp.PyArray_EMPTY(n_dims + 2, shape, cnp.NPY_INT64, 0)
            problem.indices = <int64_t*>cnp.PyArray_DATA(<cnp.ndarray>indices)
        if plans is None:
            make_dense_plan(self.kernel, n_rows, n_columns, dense)
            problem.plans.push_back(&dense)
        elif isinstance(plans, Plan):
            plan = plans
            problem.plans.push_back(&plan.plan)
        else:
            for plan in plans:
                problem.plans.push_back(&plan.plan)
        for d in range(<int>problem.plans.size()):
            self.ensure(problem.plans[d].lanes_are_columns != 0)
        if n_pairs > 0:
            with nogil:
                reduce_pairs(problem)
        return values, indices

    cdef int ensure(self, bint columns) except -1:
        if (self.kernel.columns_tile if columns else self.kernel.rows_tile) == NULL:
            address, prepare, workspace, code = self.compile("columns" if columns else "rows")
            self.keep.append(code)
            self.kernel.workspace = max(self.kernel.workspace, <int64_t>workspace)
            if columns:
                self.kernel.prepare_lanes = <Prepare><uintptr_t>prepare
                self.kernel.columns_tile = <Tile><uintptr_t>address
            else:
                self.kernel.prepare_records = <Prepare><uintptr_t>prepare
                self.kernel.rows_tile = <Tile><uintptr_t>address
        return 0

    cdef int describe(self, vector[PairOperand]& operands, arrays, int part, int64_t n, int n_batch_dims,
                      list copies) except -1:
        cdef PairOperand operand
        cdef cnp.ndarray array
        cdef int64_t offset = 0, position
        cdef int n_dims, d, own, number = cnp.NPY_FLOAT if self.kernel.bits == 32 else cnp.NPY_DOUBLE
        cdef size_t c
        for c in range(self.positions[part].size()):
            position = self.positions[part][c]
            array = arrays[position]
            if cnp.PyArray_TYPE(array) != number:
                raise TypeError(f"array {position}: expected float{self.kernel.bits}, got {(<object>array).dtype}")
            if not cnp.PyArray_ISBEHAVED_RO(array):   # other byte order, or not aligned
                array = (<object>array).astype((<object>array).dtype.newbyteorder("="), order="C")
                copies.append(array)
            n_dims = cnp.PyArray_NDIM(array)
            operand.dim = self.dims[part][c]
            if (n_dims == 0 or cnp.PyArray_DIM(array, n_dims - 1) != operand.dim
                    or (cnp.PyArray_DIM(array, n_dims - 2) != n if n_dims > 1 else part != 2)
                    or n_dims > n_batch_dims + 2):
                raise ValueError(f"array {position}: expected shape (..., {n}, {operand.dim}), got {(<object>array).shape}")
            operand.data = cnp.PyArray_BYTES(array)
            operand.offset = offset
            operand.feature_stride = cnp.PyArray_STRIDE(array, n_dims - 1)
            operand.stride = cnp.PyArray_STRIDE(array, n_dims - 2) if n_dims > 1 else 0
            for d in range(n_batch_dims):
                own = d + n_dims - 2 - n_batch_dims   # leading axes may be missing
                operand.batch_strides[d] = 0
                if own >= 0 and cnp.PyArray_DIM(array, own) > 1:
                    operand.batch_strides[d] = cnp.PyArray_STRIDE(array, own)
            operands.push_back(operand)
            offset += operand.dim
        return 0
