# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Calls of libupsweep_cuda.so with tensors: checks, description and launch.

The host time of a small call is what it costs. Here a request is a structure on the stack, filled from descriptions of
the tensors, and the library's functions are called through their addresses. A tensor is described by one call of
DLPack's table of C functions (`Exchange`), which torch has from 2.10 on, or from its attributes.

``upsweep._torch`` calls `TensorCalls`, which takes torch's functions when it is created: nothing here imports torch.
`scan_plain` and `count` return None, before any work, for all but the plainest arguments; the caller's general path
then checks the arguments and raises its errors.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

cdef extern from "upsweep_cuda.h" nogil:
    enum:
        UPSWEEP_MAX_DIMS
        UPSWEEP_OK, UPSWEEP_WORKSPACE, UPSWEEP_NO_KERNEL
        UPSWEEP_REAL, UPSWEEP_COMPLEX, UPSWEEP_INTEGER
        UPSWEEP_BOOL, UPSWEEP_INT8, UPSWEEP_UINT8, UPSWEEP_INT16, UPSWEEP_UINT16, UPSWEEP_INT32, UPSWEEP_UINT32
        UPSWEEP_INT64, UPSWEEP_UINT64, UPSWEEP_FLOAT16, UPSWEEP_BFLOAT16, UPSWEEP_FLOAT32, UPSWEEP_FLOAT64
        UPSWEEP_COMPLEX64, UPSWEEP_COMPLEX128
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
    void* current_stream


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


cdef int32_t code_of(uint8_t kind, uint8_t bits) noexcept:
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


cdef int64_t count_elements(const Operand* operand) noexcept:
    cdef int64_t n = 1
    cdef int dim
    for dim in range(operand.ndim):
        n *= operand.shape[dim]
    return n


cdef bint is_contiguous(const Operand* operand) noexcept:
    cdef int64_t step = 1
    cdef int dim
    for dim in range(operand.ndim - 1, -1, -1):
        if operand.shape[dim] != 1 and operand.strides[dim] != step:
            return count_elements(operand) == 0
        step *= operand.shape[dim]
    return True


cdef bint are_alike(const Operand* a, const Operand* b) noexcept:
    """Whether two operands have one dtype, device and shape."""
    cdef int dim
    if a.code != b.code or a.device_type != b.device_type or a.device != b.device or a.ndim != b.ndim:
        return False
    for dim in range(a.ndim):
        if a.shape[dim] != b.shape[dim]:
            return False
    return True


cdef class Functions:
    """The functions of the loaded library: `address` returns that of a name, `check` raises for a status."""

    cdef object check
    cdef int32_t (*plan_scan)(const upsweep_scan*, int32_t, upsweep_plan*)
    cdef int32_t (*scan)(const upsweep_scan*)
    cdef int32_t (*scan_lines)(upsweep_lines*)
    cdef int32_t (*lines_backward)(const upsweep_lines_backward*)
    cdef int32_t (*plan_count)(const upsweep_count*, int32_t, upsweep_count_plan*)
    cdef int32_t (*count)(const upsweep_count*)

    def __cinit__(self, address, check):
        self.check = check
        self.plan_scan = <int32_t (*)(const upsweep_scan*, int32_t, upsweep_plan*)><uintptr_t>address("plan_scan")
        self.scan = <int32_t (*)(const upsweep_scan*)><uintptr_t>address("scan")
        self.scan_lines = <int32_t (*)(upsweep_lines*)><uintptr_t>address("scan_lines")
        self.lines_backward = <int32_t (*)(const upsweep_lines_backward*)><uintptr_t>address("lines_backward")
        self.plan_count = <int32_t (*)(const upsweep_count*, int32_t, upsweep_count_plan*)><uintptr_t>address("plan_count")
        self.count = <int32_t (*)(const upsweep_count*)><uintptr_t>address("count")

    cdef int require(self, int32_t status) except -1:
        if status != UPSWEEP_OK:
            self.check(status)
        return 0


cdef void fill(upsweep_array* to, const Operand* operand, int axis) noexcept:
    """Fill an array of a request; axis is the one that the operation runs along, -1: the operand lacks it."""
    cdef int dim, at = 0
    to.data, to.dtype = operand.data, operand.code
    for dim in range(operand.ndim):
        if dim == axis:
            to.time_stride = operand.strides[dim] * operand.item
        else:
            to.batch_strides[at] = operand.strides[dim] * operand.item
            at += 1


cdef class TensorCalls:
    """The calls of one array library.

    load, check_device : of `_backends.cuda.library`.
    exchange : DLPack's table of C functions in a capsule, or None.
    dtypes : the upsweep_dtype of each dtype of tensors.
    plain_types : the classes of tensors without a subclass's behaviour.
    watchers : functions that return what is not false if something follows the operations on tensors.
    forward_ad : the module whose `_current_level` is negative where no derivative is taken forward.
    is_grad_enabled, is_neg, stream, workspace, empty_like, increment_version : functions of tensors.
    device_type : DLPack's device type of the tensors.
    """

    cdef object load, check_device, forward_ad, is_grad_enabled, is_neg, stream, workspace, empty_like
    cdef object increment_version, int64, capsule
    cdef Exchange* exchange
    cdef dict dtypes, ready       # ready: the library's functions, by the devices that they run on
    cdef frozenset plain_types
    cdef tuple watchers
    cdef int device_type

    def __init__(self, *, load, check_device, exchange, dict dtypes not None, frozenset plain_types not None,
                 tuple watchers not None, forward_ad, is_grad_enabled, is_neg, stream, workspace, empty_like,
                 increment_version, int64, int device_type=CUDA):
        self.load, self.check_device, self.dtypes, self.plain_types = load, check_device, dtypes, plain_types
        self.ready = {}
        self.watchers, self.forward_ad, self.is_grad_enabled, self.is_neg = watchers, forward_ad, is_grad_enabled, is_neg
        self.stream, self.workspace, self.empty_like = stream, workspace, empty_like
        self.increment_version, self.int64, self.device_type = increment_version, int64, device_type
        if exchange is not None:
            self.capsule = exchange
            self.exchange = <Exchange*>PyCapsule_GetPointer(exchange, "dlpack_exchange_api")
            if self.exchange.major != 1 or not self.exchange.describe:
                self.exchange = NULL

    cdef bint is_plain(self, tensor) except -1:
        return type(tensor) in self.plain_types

    cdef bint is_watched(self) except -1:
        if self.forward_ad._current_level >= 0:
            return True
        for watcher in self.watchers:
            if watcher():
                return True
        return False

    cdef int describe(self, tensor, Operand* to) except -1:
        """Describe a tensor, which stays alive and unchanged. RuntimeError: it has no memory, strides or shape."""
        cdef DLTensor description
        cdef int dim
        cdef int64_t size
        if self.exchange:
            if self.exchange.describe(<void*>tensor, &description):
                return -1
            to.data = description.data + description.byte_offset
            to.code, to.item = code_of(description.kind, description.bits), description.bits // 8
            to.device_type, to.device = description.device_type, description.device
            to.ndim, to.shape, to.strides = description.ndim, description.shape, description.strides
            return 0
        to.code, to.item = self.dtypes.get(tensor.dtype, -1), tensor.element_size()
        to.data, to.device = <char*><uintptr_t>tensor.data_ptr(), max(tensor.get_device(), 0)
        to.device_type = CUDA if tensor.is_cuda else 1 if tensor.is_cpu else 0
        to.shape, to.strides = to.sizes[0], to.sizes[1]
        to.ndim = tensor.ndim
        if to.ndim > UPSWEEP_MAX_DIMS:
            raise RuntimeError(f"expected at most {UPSWEEP_MAX_DIMS} axes, got {to.ndim}")
        for dim, size in enumerate(tensor.shape):
            to.sizes[0][dim] = size
        for dim, size in enumerate(tensor.stride()):
            to.sizes[1][dim] = size
        return 0

    cdef bint is_line(self, tensor, const Operand* operand) except -1:
        """Whether kernels take the tensor as contiguous lines of real floating numbers."""
        return (
            operand.device_type == self.device_type and UPSWEEP_FLOAT16 <= operand.code <= UPSWEEP_FLOAT64
            and operand.ndim > 0 and is_contiguous(operand) and not self.is_neg(tensor)
        )

    cdef Functions functions_of(self, int device):
        functions = self.ready.get(device)
        if functions is None:
            self.check_device(device)
            functions = self.ready[device] = self.load().functions
        return functions

    cdef void* stream_of(self, int device) except? NULL:
        return <void*><uintptr_t>self.stream(device)

    def scan_plain(self, x, gates, double gamma, axis, bint reverse, bint flush, out, record):
        """Return the scan of contiguous tensors of one dtype, or None; axis is an int, or None for the last.

        Without gates the factor is gamma. Where a gradient is needed, the result is what
        ``record(y, x, gates, gamma, axis, reverse, flush)`` returns; None stands for a caller that cannot have one.
        """
        cdef upsweep_lines request
        cdef upsweep_scan strided
        cdef Operand summands, factors, target
        cdef Functions functions
        cdef int64_t n, distance
        cdef int64_t at
        cdef int32_t status
        cdef bint differentiates
        if not (self.is_plain(x) and (gates is None or self.is_plain(gates)) and (out is None or self.is_plain(out))):
            return None
        if self.is_watched():
            return None
        differentiates = self.is_grad_enabled() and (
            x.requires_grad or (gates is not None and gates.requires_grad) or (out is not None and out.requires_grad)
        )
        if differentiates and (record is None or out is not None):
            return None
        factors.data = target.data = NULL
        try:
            at = -1 if axis is None else axis
            self.describe(x, &summands)
            if not self.is_line(x, &summands):
                return None
            if gates is not None:
                self.describe(gates, &factors)
                if not (are_alike(&factors, &summands) and self.is_line(gates, &factors)):
                    return None
            if out is not None:
                self.describe(out, &target)
                if not (are_alike(&target, &summands) and self.is_line(out, &target)):
                    return None
        except (OverflowError, RuntimeError):   # the caller refuses the axis or the tensor
            return None
        n = count_elements(&summands)
        at = at + summands.ndim if at < 0 else at
        if not 0 <= at < summands.ndim or (n == 0 and differentiates):
            return None
        if out is None:
            out = self.empty_like(x)
            self.describe(out, &target)
        else:
            # `out` may be one of the inputs, or disjoint from both; the general path decides on overlaps.
            for source in (<int64_t>summands.data, <int64_t>factors.data):
                distance = <int64_t>source - <int64_t>target.data
                if source and distance and abs(distance) < n * summands.item:
                    return None
            self.increment_version(out)   # a backward that saved it raises then
        if n == 0:
            return out
        if at < summands.ndim - 1:
            memset(&strided, 0, sizeof(strided))
            fill(&strided.x, &summands, at)
            fill(&strided.out, &target, at)
            if gates is not None:
                fill(&strided.gates, &factors, at)
            strided.gamma_re, strided.reverse = gamma, reverse
            self.start(&strided, &summands, at, summands.code, x)
            return record(out, x, gates, gamma, at, reverse, flush) if differentiates else out
        functions = self.functions_of(summands.device)
        request.device, request.dtype, request.reverse = summands.device, summands.code, reverse
        request.x, request.gates, request.out, request.gamma = summands.data, factors.data, target.data, gamma
        request.length = summands.shape[summands.ndim - 1]
        request.lines = n // request.length
        request.stream, request.workspace, request.workspace_bytes = self.stream_of(summands.device), NULL, 0
        status = functions.scan_lines(&request)
        if status == UPSWEEP_WORKSPACE:
            pointer, memory = self.workspace(request.workspace_bytes, x.device)
            request.workspace = <void*><uintptr_t>pointer
            status = functions.scan_lines(&request)
        functions.require(status)
        return record(out, x, gates, gamma, at, reverse, flush) if differentiates else out

    cdef int start(self, upsweep_scan* request, const Operand* summands, int axis, int code, x) except -1:
        """Start a scan of the tensor x to a result of dtype `code`.

        The request has all but its accumulator, shape, device, stream and workspace.
        """
        cdef upsweep_plan plan
        cdef int dim
        cdef Functions functions = self.functions_of(summands.device)
        for dim in range(summands.ndim):
            if dim == axis:
                request.length = summands.shape[dim]
            else:
                request.batch_shape[request.n_batch] = summands.shape[dim]
                request.n_batch += 1
        request.accumulator = (
            UPSWEEP_INTEGER if code < UPSWEEP_FLOAT16 else UPSWEEP_REAL if code < UPSWEEP_COMPLEX64 else UPSWEEP_COMPLEX
        )
        request.device, request.stream = summands.device, self.stream_of(summands.device)
        functions.require(functions.plan_scan(request, 0, &plan))
        if plan.workspace_bytes:
            pointer, memory = self.workspace(plan.workspace_bytes, x.device)
            request.workspace, request.workspace_bytes = <void*><uintptr_t>pointer, plan.workspace_bytes
        functions.require(functions.scan(request))
        return 0

    def lines_backward(self, g, gates, y, gx, g_gates, bint reverse):
        """Write the gradients of such a scan with gates and result y, from g, that of y.

        All are contiguous, of g's dtype and shape, which has elements. False: the library has no kernel for them.
        """
        cdef upsweep_lines_backward request
        cdef Operand of_y
        cdef Functions functions
        cdef int32_t status
        self.describe(g, &of_y)
        functions = self.functions_of(of_y.device)
        request.device, request.dtype, request.reverse = of_y.device, of_y.code, reverse
        request.length = of_y.shape[of_y.ndim - 1]
        request.lines = count_elements(&of_y) // request.length
        request.stream, request.g = self.stream_of(of_y.device), of_y.data
        request.gates, request.y = <void*><uintptr_t>gates.data_ptr(), <void*><uintptr_t>y.data_ptr()
        request.gx, request.g_gates = <void*><uintptr_t>gx.data_ptr(), <void*><uintptr_t>g_gates.data_ptr()
        status = functions.lines_backward(&request)
        if status != UPSWEEP_NO_KERNEL:
            functions.require(status)
        return status != UPSWEEP_NO_KERNEL

    def count(self, keys, weights, int64_t n_bins, bint deterministic):
        """Return the counts of 1-D contiguous integer keys, or their sums of weights, or None.

        Keys outside the bins are left out. weights are None, or as the keys and float32 or float64.
        """
        cdef upsweep_count request
        cdef upsweep_count_plan plan
        cdef Operand each, of_each, target
        cdef Functions functions
        if not self.is_plain(keys) or not (weights is None or self.is_plain(weights)) or self.is_watched():
            return None
        if weights is not None and weights.requires_grad and self.is_grad_enabled():
            return None
        try:
            self.describe(keys, &each)
            if weights is not None:
                self.describe(weights, &of_each)
        except RuntimeError:   # as above
            return None
        if not (
            each.device_type == self.device_type and 0 <= each.code <= UPSWEEP_UINT64 and each.ndim == 1
            and is_contiguous(&each) and each.shape[0] and n_bins > 0
        ):
            return None
        memset(&request, 0, sizeof(request))
        if weights is None:
            out = keys.new_empty((n_bins,)) if each.code == UPSWEEP_INT64 else keys.new_empty((n_bins,), dtype=self.int64)
        else:
            if not (
                (of_each.code == UPSWEEP_FLOAT32 or of_each.code == UPSWEEP_FLOAT64)
                and self.is_line(weights, &of_each) and of_each.ndim == 1 and of_each.shape[0] == each.shape[0]
                and of_each.device == each.device
            ):
                return None
            out = weights.new_empty((n_bins,))
            request.n_columns = 1
            fill(&request.weights, &of_each, 0)
        self.describe(out, &target)
        functions = self.functions_of(each.device)
        fill(&request.keys, &each, 0)
        fill(&request.out, &target, 0)
        request.device, request.deterministic, request.stream = each.device, deterministic, self.stream_of(each.device)
        request.length, request.n_bins = each.shape[0], n_bins
        functions.require(functions.plan_count(&request, 0, &plan))
        if plan.workspace_bytes:
            pointer, memory = self.workspace(plan.workspace_bytes, keys.device)
            request.workspace, request.workspace_bytes = <void*><uintptr_t>pointer, plan.workspace_bytes
        functions.require(functions.count(&request))
        return out

    cdef int fill(self, upsweep_array* to, tensor, int axis) except -1:
        cdef Operand operand
        if tensor is not None:
            self.describe(tensor, &operand)
            fill(to, &operand, axis)
        return 0

    def scan(self, x, gates, gamma, factor, initial, reset, out, final_state, *, int axis, bint reverse,
             bint exclusive, int64_t window):
        """Start a scan of tensors on a device, which the caller has checked.

        x, gates, reset and out have one shape; gamma, initial and final_state lack the axis. Without gates and gamma
        the factor is a number. Without out only the final state is written, in its dtype.
        """
        cdef upsweep_scan request
        cdef Operand summands
        cdef double complex number
        memset(&request, 0, sizeof(request))
        self.describe(x, &summands)
        fill(&request.x, &summands, axis)
        self.fill(&request.gates, gates, axis)
        self.fill(&request.reset, reset, axis)
        self.fill(&request.out, out, axis)
        self.fill(&request.gamma, gamma, -1)
        self.fill(&request.initial, initial, -1)
        self.fill(&request.final_state, final_state, -1)
        if gates is None and gamma is None:
            number = factor
            request.gamma_re, request.gamma_im = number.real, number.imag
        request.reverse, request.exclusive, request.window = reverse, exclusive, window
        self.start(
            &request, &summands, axis, request.final_state.dtype if out is None else request.out.dtype, x
        )
