# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Calls of libupsweep_cuda.so with tensors and cupy arrays: checks, description and launch.

The host time of a small call is what it costs. Here a request is a structure on the stack, filled from descriptions of
the arrays, and the library's functions are called through their addresses. An array is described by one call of
DLPack's table of C functions (`Exchange`), which torch has from 2.10 on, or from its attributes.

``upsweep._torch`` calls `TensorCalls` and ``upsweep._backends.cuda.cupy_calls`` `CupyCalls`. Both take the functions of
the array library when they are created: nothing here imports one. `scan_plain` and `count` return None for all but
the plainest arguments; the caller's general path then checks the arguments and raises its errors.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memset

from _cuda_interface cimport (
    CUDA, UPSWEEP_COMPLEX, UPSWEEP_COMPLEX64, UPSWEEP_FLOAT16, UPSWEEP_FLOAT32, UPSWEEP_FLOAT64, UPSWEEP_INT64,
    UPSWEEP_INTEGER, UPSWEEP_MAX_DIMS, UPSWEEP_NO_KERNEL, UPSWEEP_OK, UPSWEEP_REAL, UPSWEEP_UINT64, UPSWEEP_WORKSPACE,
    DLTensor, Exchange, Operand, as_tuple, code_of, count_elements, fill, have_one_shape, is_contiguous, is_state, overlaps,
    repeats, upsweep_array, upsweep_count, upsweep_count_plan, upsweep_lines, upsweep_lines_backward, upsweep_plan, upsweep_scan,
)


cdef class Functions:
    """The functions of the loaded library: `address` returns that of a name, `check` raises for a status."""

    cdef object check
    cdef int32_t (*plan_scan)(const upsweep_scan*, int32_t, upsweep_plan*)
    cdef int32_t (*scan)(const upsweep_scan*)
    cdef int32_t (*scan_lines)(upsweep_lines*)
    cdef int32_t (*lines_backward)(const upsweep_lines_backward*)
    cdef int32_t (*plan_count)(const upsweep_count*, int32_t, upsweep_count_plan*)
    cdef int32_t (*count)(const upsweep_count*)
    cdef int32_t (*key_range)(const upsweep_count*, void*)
    cdef int32_t (*copy_to_host)(int32_t, void*, void*, const void*, int64_t) noexcept nogil

    def __cinit__(self, address, check):
        self.check = check
        self.plan_scan = <int32_t (*)(const upsweep_scan*, int32_t, upsweep_plan*)><uintptr_t>address("plan_scan")
        self.scan = <int32_t (*)(const upsweep_scan*)><uintptr_t>address("scan")
        self.scan_lines = <int32_t (*)(upsweep_lines*)><uintptr_t>address("scan_lines")
        self.lines_backward = <int32_t (*)(const upsweep_lines_backward*)><uintptr_t>address("lines_backward")
        self.plan_count = <int32_t (*)(const upsweep_count*, int32_t, upsweep_count_plan*)><uintptr_t>address("plan_count")
        self.count = <int32_t (*)(const upsweep_count*)><uintptr_t>address("count")
        self.key_range = <int32_t (*)(const upsweep_count*, void*)><uintptr_t>address("key_range")
        self.copy_to_host = (
            <int32_t (*)(int32_t, void*, void*, const void*, int64_t) noexcept nogil><uintptr_t>address("copy_to_host")
        )

    cdef int require(self, int32_t status) except -1:
        if status != UPSWEEP_OK:
            self.check(status)
        return 0

    cdef int read(self, const upsweep_count* request, void* source, int64_t* words) except -1:
        """Read two int64 of the device of a request, once the work on its stream is done."""
        cdef int32_t device = request.device, status
        cdef void* stream = request.stream
        with nogil:
            status = self.copy_to_host(device, stream, words, source, 16)
        return self.require(status)


cdef class TensorCalls:
    """The calls of one array library.

    load, check_device : of `_backends.cuda.library`.
    exchange : DLPack's table of C functions in a capsule, or None.
    dtypes : the upsweep_dtype of each dtype that is taken.
    plain_types : the classes of tensors without a subclass's behaviour.
    watchers : functions that return what is not false if something follows the operations on tensors.
    forward_ad : the module whose `_current_level` is negative where no derivative is taken forward.
    is_grad_enabled, is_neg, stream, workspace, empty_like, increment_version : functions of tensors.
    empty : ``empty(shape, strides, dtype, like)`` allocates on the device of `like`; strides are in elements.
    empty_here : None, or a faster ``empty_here(shape, strides, dtype)`` on the current device.
    device_type : DLPack's device type of the tensors.

    forward_ad, is_grad_enabled and is_neg are None where arrays have no derivatives and no negative bit.
    """

    cdef object load, check_device, forward_ad, is_grad_enabled, is_neg, stream, workspace, empty_like
    cdef object empty, empty_here, increment_version, capsule
    cdef Exchange* exchange
    cdef dict dtypes, ready       # ready: the library's functions, by the devices that they run on
    cdef list dtype_of            # by upsweep_dtype; None: not taken
    cdef frozenset plain_types
    cdef tuple watchers
    cdef int device_type

    def __init__(self, *, load, check_device, exchange, dict dtypes not None, frozenset plain_types not None,
                 tuple watchers not None, forward_ad, is_grad_enabled, is_neg, stream, workspace, empty_like, empty,
                 empty_here, increment_version, int device_type=CUDA):
        self.load, self.check_device, self.dtypes, self.plain_types = load, check_device, dtypes, plain_types
        self.ready = {}
        self.watchers, self.forward_ad, self.is_grad_enabled, self.is_neg = watchers, forward_ad, is_grad_enabled, is_neg
        self.stream, self.workspace, self.empty_like = stream, workspace, empty_like
        self.empty, self.empty_here = empty, empty_here
        self.increment_version, self.device_type = increment_version, device_type
        self.dtype_of = [None] * (max(dtypes.values()) + 1)
        for dtype, code in dtypes.items():
            self.dtype_of[code] = dtype
        if exchange is not None:
            self.capsule = exchange
            self.exchange = <Exchange*>PyCapsule_GetPointer(exchange, "dlpack_exchange_api")
            if self.exchange.major != 1 or not self.exchange.describe:
                self.exchange = NULL

    cdef bint is_plain(self, tensor) except -1:
        return tensor is None or type(tensor) in self.plain_types

    cdef bint is_watched(self) except -1:
        if self.forward_ad is not None and self.forward_ad._current_level >= 0:
            return True
        for watcher in self.watchers:
            if watcher():
                return True
        return False

    cdef bint differentiates(self, tensor) except -1:
        return tensor is not None and tensor.requires_grad

    cdef int describe(self, tensor, Operand* to) except -1:
        """Describe a tensor, which stays alive and unchanged. RuntimeError: it has no memory, strides or shape."""
        cdef DLTensor description
        if not self.exchange:
            return self.describe_attributes(tensor, to)
        if self.exchange.describe(<void*>tensor, &description):
            return -1
        self.check_ndim(description.ndim)
        to.data = description.data + description.byte_offset
        to.code, to.item = code_of(description.kind, description.bits), description.bits // 8
        to.device_type, to.device = description.device_type, description.device
        to.ndim, to.shape, to.strides = description.ndim, description.shape, description.strides
        return 0

    cdef int check_ndim(self, int ndim) except -1:
        if ndim > UPSWEEP_MAX_DIMS:
            raise RuntimeError(f"expected at most {UPSWEEP_MAX_DIMS} axes, got {ndim}")
        return 0

    cdef int describe_attributes(self, tensor, Operand* to) except -1:
        to.code, to.item = self.dtypes.get(tensor.dtype, -1), tensor.element_size()
        to.data, to.device = <char*><uintptr_t>tensor.data_ptr(), max(tensor.get_device(), 0)
        to.device_type = CUDA if tensor.is_cuda else 1 if tensor.is_cpu else 0
        return self.describe_layout(tensor.shape, tensor.stride(), 1, to)

    cdef int describe_layout(self, shape, strides, int64_t unit, Operand* to) except -1:
        """Store a shape, and strides that are multiples of `unit`."""
        cdef int dim
        cdef int64_t size
        to.shape, to.strides, to.ndim = to.sizes[0], to.sizes[1], len(shape)
        self.check_ndim(to.ndim)
        for dim, size in enumerate(shape):
            to.sizes[0][dim] = size
        for dim, size in enumerate(strides):
            if size % unit:
                raise RuntimeError(f"expected strides that are multiples of {unit}, got {size}")
            to.sizes[1][dim] = size // unit
        return 0

    cdef bint is_taken(self, tensor, const Operand* operand) except -1:
        """Whether kernels take the tensor, of real numbers on the device."""
        return (
            operand.device_type == self.device_type and 0 <= operand.code <= UPSWEEP_FLOAT64
            and operand.code < len(self.dtype_of) and self.dtype_of[operand.code] is not None
            and <uintptr_t>operand.data % operand.item == 0 and not (self.is_neg is not None and self.is_neg(tensor))
        )

    cdef Functions functions_of(self, int device):
        functions = self.ready.get(device)
        if functions is None:
            self.check_device(device)
            functions = self.ready[device] = self.load().functions
        return functions

    cdef int stream_of(self, int device, void** stream) except -1:
        if self.exchange and self.device_type == CUDA and self.exchange.current_stream:
            return -1 if self.exchange.current_stream(CUDA, device, stream) else 0
        stream[0] = <void*><uintptr_t>self.stream(device)
        return 0

    cdef object new(self, tuple shape, tuple strides, int code, like, const Operand* described, Operand* to):
        """Return a tensor on the device of `like`, and describe it; `described` is that of `like`."""
        if self.empty_here is not None:
            result = self.empty_here(shape, strides, self.dtype_of[code])
            self.describe(result, to)
            if to.device == described.device:
                return result
        result = self.empty(shape, strides, self.dtype_of[code], like)
        self.describe(result, to)
        return result

    cdef object new_state(self, int axis, int code, like, const Operand* described, Operand* to):
        """Return a tensor in C order that has the shape of `like` without an axis, and describe it."""
        cdef int64_t shape[64]
        cdef int64_t strides[64]
        cdef int64_t step = 1
        cdef int dim, at = described.ndim - 1
        for dim in range(described.ndim - 1, -1, -1):
            if dim != axis:
                at -= 1
                shape[at], strides[at] = described.shape[dim], step
                step *= described.shape[dim]
        at = described.ndim - 1
        return self.new(as_tuple(shape, at), as_tuple(strides, at), code, like, described, to)

    def scan_plain(self, x, gates, double gamma, axis, bint reverse, bint flush, out, record, initial=None,
                   bint exclusive=False, bint return_final=False):
        """Return the scan, or the scan and its final state, of real tensors of one dtype and shape; None for others.

        Without gates the factor is gamma. axis is an int, or None for the last. `initial` has the shape of the states.
        Integers are summed, without `flush`. Where a gradient is needed, the result is what
        ``record(y, x, gates, gamma, axis, reverse, flush)`` returns; None stands for a caller that cannot have one.
        """
        cdef upsweep_lines request
        cdef upsweep_scan strided
        cdef Operand summands, factors, target, state, last
        cdef Functions functions
        cdef int64_t n, at
        cdef int32_t status
        cdef int code
        cdef bint differentiates, is_dense, is_integer, has_state = initial is not None or return_final
        if not (self.is_plain(x) and self.is_plain(gates) and self.is_plain(out) and self.is_plain(initial)):
            return None
        if self.is_watched() or not (axis is None or type(axis) is int):
            return None
        differentiates = self.is_grad_enabled is not None and self.is_grad_enabled() and (
            x.requires_grad or self.differentiates(gates) or self.differentiates(out) or self.differentiates(initial)
        )
        if differentiates and (record is None or out is not None or has_state or exclusive):
            return None
        factors.data = NULL
        try:
            at = -1 if axis is None else axis
            self.describe(x, &summands)
            if not self.is_taken(x, &summands) or repeats(&summands):
                return None
            is_integer = summands.code <= UPSWEEP_UINT64
            code = UPSWEEP_INT64 if is_integer else summands.code
            is_dense = is_contiguous(&summands)
            if gates is not None:
                self.describe(gates, &factors)
                if not (have_one_shape(&factors, &summands) and factors.code == summands.code
                        and self.is_taken(gates, &factors)) or repeats(&factors):
                    return None
                is_dense = is_dense and is_contiguous(&factors)
            if out is not None:
                self.describe(out, &target)
                if not (is_dense and have_one_shape(&target, &summands) and target.code == summands.code == code
                        and is_contiguous(&target) and self.is_taken(out, &target)):
                    return None
            if initial is not None:
                self.describe(initial, &state)
                if not (state.device == summands.device and (state.code <= UPSWEEP_UINT64) == is_integer
                        and self.is_taken(initial, &state)):
                    return None
        except (OverflowError, RuntimeError):   # the caller refuses the axis or the tensor
            return None
        n = count_elements(&summands)
        at = at + summands.ndim if at < 0 else at
        if not 0 <= at < summands.ndim or (n == 0 and (differentiates or has_state)):
            return None
        if (is_integer and (gates is not None or flush)) or (initial is not None and (
                out is not None or not is_state(&state, &summands, at))):
            return None
        if out is None:
            if is_dense:
                out = self.new(as_tuple(summands.shape, summands.ndim), as_tuple(summands.strides, summands.ndim), code,
                               x, &summands, &target)
            else:
                out = self.empty_like(x, dtype=self.dtype_of[code])
                self.describe(out, &target)
        else:
            # `out` may be one of the inputs, or disjoint from both; the general path decides on overlaps.
            if overlaps(target.data, summands.data, n * summands.item) or (
                    gates is not None and overlaps(target.data, factors.data, n * summands.item)):
                return None
            self.increment_version((out,))   # a backward that saved it raises then
        if n == 0:
            return out
        if at == summands.ndim - 1 and is_dense and not (is_integer or has_state or exclusive):
            functions = self.functions_of(summands.device)
            request.device, request.dtype, request.reverse = summands.device, summands.code, reverse
            request.x, request.gates, request.out, request.gamma = summands.data, factors.data, target.data, gamma
            request.length = summands.shape[summands.ndim - 1]
            request.lines = n // request.length
            request.workspace, request.workspace_bytes = NULL, 0
            self.stream_of(summands.device, &request.stream)
            status = functions.scan_lines(&request)
            if status == UPSWEEP_WORKSPACE:
                pointer, memory = self.workspace(request.workspace_bytes, x.device)
                request.workspace = <void*><uintptr_t>pointer
                status = functions.scan_lines(&request)
            functions.require(status)
            return record(out, x, gates, gamma, at, reverse, flush) if differentiates else out
        memset(&strided, 0, sizeof(strided))
        fill(&strided.x, &summands, at)
        fill(&strided.out, &target, at)
        if gates is not None:
            fill(&strided.gates, &factors, at)
        if initial is not None:
            fill(&strided.initial, &state, -1)
        if return_final:
            final = self.new_state(at, code if code >= UPSWEEP_FLOAT32 or is_integer else UPSWEEP_FLOAT32, x, &summands, &last)
            fill(&strided.final_state, &last, -1)
        strided.gamma_re, strided.reverse, strided.exclusive = gamma, reverse, exclusive
        self.start(&strided, &summands, at, code, x)
        if return_final:
            return out, final
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
        request.device = summands.device
        self.stream_of(summands.device, &request.stream)
        functions.require(functions.plan_scan(request, 0, &plan))
        if plan.workspace_bytes:
            pointer, memory = self.workspace(plan.workspace_bytes, x.device)
            request.workspace, request.workspace_bytes = <void*><uintptr_t>pointer, plan.workspace_bytes
        functions.require(functions.scan(request))
        return 0

    def lines_backward(self, g, gates, y, bint reverse):
        """Return the gradients of the summands and the gates of such a scan, with result y, from g, that of y.

        None where the tensors are not contiguous ones of one dtype and shape, or no kernel computes both in one pass.
        """
        cdef upsweep_lines_backward request
        cdef Operand of_g, of_gates, of_y, of_gx, of_g_gates
        cdef Functions functions
        cdef tuple shape, strides
        cdef int32_t status
        cdef int64_t n
        self.describe(g, &of_g)
        self.describe(gates, &of_gates)
        self.describe(y, &of_y)
        n = count_elements(&of_g)
        if not (
            n and of_g.ndim and of_g.code >= UPSWEEP_FLOAT16 and of_g.code == of_gates.code == of_y.code
            and have_one_shape(&of_g, &of_gates) and have_one_shape(&of_g, &of_y)
            and is_contiguous(&of_g) and is_contiguous(&of_gates) and is_contiguous(&of_y)
            and self.is_taken(g, &of_g) and self.is_taken(gates, &of_gates) and self.is_taken(y, &of_y)
        ):
            return None
        functions = self.functions_of(of_g.device)
        shape, strides = as_tuple(of_g.shape, of_g.ndim), as_tuple(of_g.strides, of_g.ndim)
        gx = self.new(shape, strides, of_g.code, g, &of_g, &of_gx)
        g_gates = self.new(shape, strides, of_g.code, g, &of_g, &of_g_gates)
        request.device, request.dtype, request.reverse = of_g.device, of_g.code, reverse
        request.length = of_g.shape[of_g.ndim - 1]
        request.lines = n // request.length
        self.stream_of(of_g.device, &request.stream)
        request.g, request.gates, request.y = of_g.data, of_gates.data, of_y.data
        request.gx, request.g_gates = of_gx.data, of_g_gates.data
        status = functions.lines_backward(&request)
        if status == UPSWEEP_NO_KERNEL:
            return None
        functions.require(status)
        return gx, g_gates

    def count(self, keys, weights, minlength, length, invalid, bint deterministic, int64_t most):
        """Return the counts of 1-D contiguous integer keys, or their sums of weights, or None.

        weights are None, or as the keys and float32 or float64. The arguments are those of `upsweep.bincount`; from
        `most` bins on the caller has to look at the memory. Where keys are invalid, None is returned after the count,
        for the caller to raise its error.
        """
        cdef bint drop
        cdef int64_t n_bins, least
        cdef upsweep_count request
        cdef upsweep_count_plan plan
        cdef Operand each, of_each, target
        cdef Functions functions
        cdef int64_t words[2]
        if not (self.is_plain(keys) and self.is_plain(weights)) or self.is_watched():
            return None
        if type(minlength) is not int or not (length is None or type(length) is int) or type(invalid) is not str:
            return None
        drop = invalid == "drop"
        if not drop and invalid != "raise":
            return None
        if self.is_grad_enabled is not None and self.is_grad_enabled() and self.differentiates(weights):
            return None
        try:
            least, n_bins = minlength, -1 if length is None else length
            if least < 0 or (length is not None and n_bins < least):
                return None
            self.describe(keys, &each)
            if not (
                self.is_taken(keys, &each) and each.code <= UPSWEEP_UINT64 and each.ndim == 1 and is_contiguous(&each)
                and each.shape[0]
            ):
                return None
            if weights is not None:
                self.describe(weights, &of_each)
                if not (
                    (of_each.code == UPSWEEP_FLOAT32 or of_each.code == UPSWEEP_FLOAT64)
                    and have_one_shape(&each, &of_each) and is_contiguous(&of_each) and self.is_taken(weights, &of_each)
                ):
                    return None
        except (OverflowError, RuntimeError):   # as above
            return None
        functions = self.functions_of(each.device)
        memset(&request, 0, sizeof(request))
        fill(&request.keys, &each, 0)
        request.device, request.deterministic, request.length = each.device, deterministic, each.shape[0]
        self.stream_of(each.device, &request.stream)
        if n_bins < 0 or not drop:
            pointer, words_memory = self.workspace(sizeof(words), keys.device)
        if n_bins < 0:
            functions.require(functions.key_range(&request, <void*><uintptr_t>pointer))
            functions.read(&request, <void*><uintptr_t>pointer, words)
            # The largest key, which wraps around from 2**63 on, and the position of the first negative one.
            if (words[1] >= 0 and not drop) or words[0] >= most or (words[0] < 0 and each.code == UPSWEEP_UINT64):
                return None
            n_bins, drop = max(words[0] + 1, least), True
        if not 0 < n_bins < most:
            return None
        request.n_bins = n_bins
        code = UPSWEEP_INT64 if weights is None else of_each.code
        out = self.new((n_bins,), (1,), code, keys, &each, &target)
        fill(&request.out, &target, 0)
        if weights is not None:
            request.n_columns = 1
            fill(&request.weights, &of_each, 0)
        if not drop:
            request.dropped = <void*><uintptr_t>pointer
        functions.require(functions.plan_count(&request, 0, &plan))
        if plan.workspace_bytes:
            pointer, memory = self.workspace(plan.workspace_bytes, keys.device)
            request.workspace, request.workspace_bytes = <void*><uintptr_t>pointer, plan.workspace_bytes
        functions.require(functions.count(&request))
        if not drop:
            functions.read(&request, request.dropped, words)
        return out if drop or words[0] == 0 else None

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


cdef class CupyCalls(TensorCalls):
    """The calls of cupy, whose arrays have other attributes, and strides in bytes."""

    cdef int describe_attributes(self, array, Operand* to) except -1:
        memory = array.data
        to.code, to.item = self.dtypes.get(array.dtype, -1), array.itemsize
        to.data, to.device, to.device_type = <char*><uintptr_t>memory.ptr, memory.device_id, CUDA
        return self.describe_layout(array.shape, array.strides, to.item, to)
