"""The C interface of libupsweep_cuda.so, DLPack's binary interface, and arrays as both describe them."""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "upsweep_cuda.h" nogil:
    enum:
        UPSWEEP_MAX_DIMS
        UPSWEEP_OK, UPSWEEP_WORKSPACE, UPSWEEP_NO_KERNEL
        UPSWEEP_REAL, UPSWEEP_COMPLEX, UPSWEEP_INTEGER
        UPSWEEP_BOOL, UPSWEEP_INT8, UPSWEEP_UINT8, UPSWEEP_INT16, UPSWEEP_UINT16, UPSWEEP_INT32, UPSWEEP_UINT32
        UPSWEEP_INT64, UPSWEEP_UINT64, UPSWEEP_FLOAT16, UPSWEEP_BFLOAT16, UPSWEEP_FLOAT32, UPSWEEP_FLOAT64
        UPSWEEP_COMPLEX64, UPSWEEP_COMPLEX128
        UPSWEEP_HISTC, UPSWEEP_HISTOGRAM
    ctypedef struct upsweep_array:
        void* data
        int32_t dtype
        int64_t time_stride
        int64_t batch_strides[64]
    ctypedef struct upsweep_scan:
        int32_t device, accumulator, reverse, exclusive
        void* stream
        void* workspace
        int64_t workspace_bytes
        double gamma_re, gamma_im
        int64_t length, window
        int32_t n_batch
        int64_t batch_shape[64]
        upsweep_array x, gates, reset, out, gamma, initial, final_state
    ctypedef struct upsweep_reduction:
        upsweep_scan scan
        upsweep_array multiplier, dropped
    ctypedef struct upsweep_plan:
        int64_t workspace_bytes
    ctypedef struct upsweep_lines:
        int32_t device, dtype, reverse
        void* stream
        void* x
        void* gates
        void* out
        double gamma
        int64_t lines, length
        void* workspace
        int64_t workspace_bytes
    ctypedef struct upsweep_lines_backward:
        int32_t device, dtype, reverse
        void* stream
        void* gates
        void* y
        void* g
        void* gx
        void* g_gates
        int64_t lines, length
    ctypedef struct upsweep_count:
        int32_t device, deterministic
        void* stream
        void* workspace
        int64_t workspace_bytes, length, n_bins, n_columns
        upsweep_array keys, weights, out
        void* dropped
    ctypedef struct upsweep_histogram:
        upsweep_count count
        int32_t rule, edge_dtype, step_dtype
        double first, last, step
        void* edges
    ctypedef struct upsweep_count_plan:
        int64_t workspace_bytes


cdef struct DLTensor:   # of DLPack's binary interface, version 1
    char* data
    int32_t device_type, device
    int32_t ndim
    uint8_t kind, bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides        # in elements
    uint64_t byte_offset


cdef struct Exchange:       # the same's table of functions; those that are not called here are pointers to nothing
    uint32_t major, minor
    void* previous
    void* allocate
    void* from_object
    void* to_object
    int (*describe)(void*, DLTensor*)
    int (*current_stream)(int32_t, int32_t, void**)


cdef enum:
    CUDA = 2                # DLPack's device type


cdef struct Operand:
    char* data
    int32_t code            # the upsweep_dtype; -1: none
    int32_t item            # bytes of an element
    int32_t device_type, device, ndim
    int64_t* shape
    int64_t* strides        # in elements
    int64_t sizes[2][64]    # shape and strides where no table describes the tensor


cdef inline int32_t code_of(uint8_t kind, uint8_t bits) noexcept:
    """Return the upsweep_dtype of a dtype of DLPack; -1: none."""
    if kind == 0:     # signed integers
        return UPSWEEP_INT8 if bits == 8 else UPSWEEP_INT16 if bits == 16 else UPSWEEP_INT32 if bits == 32 else UPSWEEP_INT64
    if kind == 1:     # unsigned integers
        return (
            UPSWEEP_UINT8 if bits == 8 else UPSWEEP_UINT16 if bits == 16 else UPSWEEP_UINT32 if bits == 32
            else UPSWEEP_UINT64
        )
    if kind == 2:
        return UPSWEEP_FLOAT16 if bits == 16 else UPSWEEP_FLOAT32 if bits == 32 else UPSWEEP_FLOAT64
    if kind == 4:
        return UPSWEEP_BFLOAT16
    if kind == 5 and bits >= 64:
        return UPSWEEP_COMPLEX64 if bits == 64 else UPSWEEP_COMPLEX128
    return UPSWEEP_BOOL if kind == 6 else -1


cdef inline int64_t count_elements(const Operand* operand) noexcept:
    cdef int64_t n = 1
    cdef int dim
    for dim in range(operand.ndim):
        n *= operand.shape[dim]
    return n


cdef inline bint is_contiguous(const Operand* operand) noexcept:
    cdef int64_t step = 1
    cdef int dim
    for dim in range(operand.ndim - 1, -1, -1):
        if operand.shape[dim] != 1 and operand.strides[dim] != step:
            return count_elements(operand) == 0
        step *= operand.shape[dim]
    return True


cdef inline bint have_one_shape(const Operand* a, const Operand* b) noexcept:
    """Whether two operands have one device and shape."""
    cdef int dim
    if a.device_type != b.device_type or a.device != b.device or a.ndim != b.ndim:
        return False
    for dim in range(a.ndim):
        if a.shape[dim] != b.shape[dim]:
            return False
    return True


cdef inline bint repeats(const Operand* operand) noexcept:
    """Whether elements of an axis are one in memory."""
    cdef int dim
    for dim in range(operand.ndim):
        if operand.strides[dim] == 0 and operand.shape[dim] > 1:
            return True
    return False


cdef inline void fill(upsweep_array* to, const Operand* operand, int axis) noexcept:
    """Fill an array of a request; axis is the one that the operation runs along, -1: the operand lacks it."""
    cdef int dim, at = 0
    to.data, to.dtype = operand.data, operand.code
    for dim in range(operand.ndim):
        if dim == axis:
            to.time_stride = operand.strides[dim] * operand.item
        else:
            to.batch_strides[at] = operand.strides[dim] * operand.item
            at += 1


cdef inline bint overlaps(const char* a, const char* b, int64_t n_bytes) noexcept:
    """Whether two arrays of n_bytes share memory without being one."""
    cdef int64_t distance = a - b
    return distance != 0 and -n_bytes < distance < n_bytes


cdef inline bint is_state(const Operand* state, const Operand* of, int64_t axis) noexcept:
    """Whether a state has the shape of `of` without an axis."""
    cdef int dim
    if state.ndim != of.ndim - 1:
        return False
    for dim in range(state.ndim):
        if state.shape[dim] != of.shape[dim + (dim >= axis)]:
            return False
    return True


cdef inline tuple as_tuple(const int64_t* values, int n):
    cdef tuple result = PyTuple_New(n)
    cdef object value   # as an int64_t, each use would make an int of its own, and the tuple would hold a freed one
    cdef int i
    for i in range(n):
        value = values[i]
        Py_INCREF(value)
        PyTuple_SET_ITEM(result, i, value)
    return result
