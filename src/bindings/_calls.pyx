# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Calls of libupsweep_cuda.so with tensors and cupy arrays: checks, description and launch.

The host time of a small call is what it costs. Here a request is a structure on the stack, filled from descriptions of
the arrays, and the library's functions are called through their addresses. An array is described by one call of
DLPack's table of C functions (`Exchange`), which torch has from 2.10 on, or from its attributes.

``upsweep._torch`` calls `TensorCalls` and ``upsweep._backends.cuda.cupy_calls`` `CupyCalls`. Both take the functions of
the array library when they are created: nothing here imports one. `scan_plain`, `count`, `histc` and `histogram` return
None for all but the plainest arguments; the caller's general path then checks the arguments and raises its errors.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy, memset

from _cuda_interface cimport (
    CUDA, UPSWEEP_COMPLEX, UPSWEEP_COMPLEX64, UPSWEEP_FLOAT16, UPSWEEP_FLOAT32, UPSWEEP_FLOAT64, UPSWEEP_HISTC,
    UPSWEEP_HISTOGRAM, UPSWEEP_INT64, UPSWEEP_INTEGER, UPSWEEP_MAX_DIMS, UPSWEEP_NO_KERNEL, UPSWEEP_OK, UPSWEEP_REAL,
    UPSWEEP_UINT64, UPSWEEP_WORKSPACE,
    DLTensor, Exchange, Operand, as_tuple, code_of, count_elements, fill, have_one_shape, is_contiguous, is_state, overlaps,
    repeats, upsweep_array, upsweep_count, upsweep_count_plan, upsweep_histogram, upsweep_lines, upsweep_lines_backward,
    upsweep_plan, upsweep_reduction, upsweep_scan,
)

include "_array_calls.pxi"


cdef class TensorCalls(ArrayCalls):
    """The calls of one array library."""

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
                memory = self.reserve(request.workspace_bytes, x, &request.workspace)
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
        """Start a scan of the tensor x to a result of dtype `code`; the request has its arrays, factor and flags."""
        cdef upsweep_plan plan
        cdef Functions functions = self.complete(request, summands, axis, code)
        functions.require(functions.plan_scan(request, 0, &plan))
        memory = self.reserve(plan.workspace_bytes, x, &request.workspace)
        request.workspace_bytes = plan.workspace_bytes
        functions.require(functions.scan(request))
        return 0

    cdef Functions complete(self, upsweep_scan* request, const Operand* summands, int axis, int code):
        """Fill in shape, device, stream and the accumulator for a result of dtype `code`; return the device's functions."""
        cdef int dim
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
        return self.functions_of(summands.device)

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
        cdef void* on_device
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
            words_memory = self.reserve(sizeof(words), keys, &on_device)
        if n_bins < 0:
            functions.require(functions.key_range(&request, on_device))
            functions.read(&request, on_device, words, sizeof(words))
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
            request.dropped = on_device
        functions.require(functions.plan_count(&request, 0, &plan))
        memory = self.reserve(plan.workspace_bytes, keys, &request.workspace)
        request.workspace_bytes = plan.workspace_bytes
        functions.require(functions.count(&request))
        if not drop:
            functions.read(&request, request.dropped, words, sizeof(words))
        return out if drop or words[0] == 0 else None

    cdef bint describe_floats(self, x, Operand* each, upsweep_histogram* request) except -1:
        """Describe a plain contiguous tensor of float32 or float64 that has elements, and begin a request for all of
        them; false for others."""
        if type(x) not in self.plain_types or x is None or self.is_watched():
            return False
        try:
            self.describe(x, each)
            if not (
                (each.code == UPSWEEP_FLOAT32 or each.code == UPSWEEP_FLOAT64) and is_contiguous(each)
                and count_elements(each) and self.is_taken(x, each)
            ):
                return False
        except (OverflowError, RuntimeError):   # as above
            return False
        memset(request, 0, sizeof(upsweep_histogram))
        request.count.keys.data, request.count.keys.dtype, request.count.keys.time_stride = each.data, each.code, each.item
        request.count.device, request.count.length = each.device, count_elements(each)
        self.stream_of(each.device, &request.count.stream)
        return True

    cdef bint find_extremes(self, x, const Operand* each, const upsweep_count* request, double* low, double* high) except -1:
        """Find the least and the largest element of x; whether all are finite."""
        cdef int64_t words[3]
        cdef int i
        cdef void* pointer
        cdef Functions functions = self.functions_of(each.device)
        memory = self.scratch(sizeof(words), x, each, &pointer)
        functions.require(functions.value_range(request, pointer))
        functions.read(request, pointer, words, sizeof(words))
        for i in range(2):   # float64 that are ordered as int64: of negative ones all bits but the sign are flipped
            words[i] ^= (words[i] >> 63) & 0x7FFFFFFFFFFFFFFF
        memcpy(low, &words[0], sizeof(double))
        memcpy(high, &words[1], sizeof(double))
        return words[2] < 0

    cdef object run_histogram(self, upsweep_histogram* request, int64_t n_bins, int code, x, const Operand* each):
        """Return the counts of x, as numbers of dtype `code`; the request lacks them and its workspace."""
        cdef upsweep_count_plan plan
        cdef Operand target
        cdef Functions functions = self.functions_of(each.device)
        out = self.new((n_bins,), (1,), code, x, each, &target)
        fill(&request.count.out, &target, 0)
        request.count.n_bins = n_bins
        functions.require(functions.plan_histogram(request, 0, &plan))
        memory = self.scratch(plan.workspace_bytes, x, each, &request.count.workspace)
        request.count.workspace_bytes = plan.workspace_bytes
        functions.require(functions.histogram(request))
        return out

    def histc(self, x, int64_t n_bins, double low, double high, double widest):
        """Return `upsweep.histc` of a contiguous tensor of floats, or None.

        The ends of the range have to be less than `widest` in magnitude.
        """
        cdef upsweep_histogram request
        cdef Operand each
        if not self.describe_floats(x, &each, &request):
            return None
        if each.code == UPSWEEP_FLOAT32:
            low, high = <float>low, <float>high
        if low == high and not self.find_extremes(x, &each, &request.count, &low, &high):
            return None
        if not -widest < low < high < widest:
            return None
        request.rule, request.first, request.last = UPSWEEP_HISTC, low, high
        return self.run_histogram(&request, n_bins, each.code, x, &each)

    def extremes(self, x):
        """Return the least and the largest element of a contiguous tensor of floats, or None."""
        cdef upsweep_histogram request
        cdef Operand each
        cdef double low, high
        if not self.describe_floats(x, &each, &request) or not self.find_extremes(x, &each, &request.count, &low, &high):
            return None
        return low, high

    def histogram(self, x, double first, double last, int64_t n_bins, double step, int step_code, int edge_code):
        """Return the counts of a contiguous tensor of floats and the edges of its bins of one width, or None."""
        cdef upsweep_histogram request
        cdef Operand each, target
        if not self.describe_floats(x, &each, &request):
            return None
        edges = self.new((n_bins + 1,), (1,), edge_code, x, &each, &target)
        request.rule, request.first, request.last, request.step = UPSWEEP_HISTOGRAM, first, last, step
        request.step_dtype, request.edge_dtype, request.edges = step_code, edge_code, target.data
        return self.run_histogram(&request, n_bins, UPSWEEP_INT64, x, &each), edges

    cdef int fill(self, upsweep_array* to, tensor, int axis) except -1:
        cdef Operand operand
        if tensor is not None:
            self.describe(tensor, &operand)
            fill(to, &operand, axis)
        return 0

    def signature(self, x, gates):
        """Return what a scan of plain tensors of real numbers depends on besides the numbers, or None.

        None also for integers, and where a derivative is needed or something follows the operations on tensors.
        """
        cdef Operand operand
        if not (self.is_plain(x) and self.is_plain(gates)) or self.is_watched():
            return None
        if self.is_grad_enabled is not None and self.is_grad_enabled() and (
                self.differentiates(x) or self.differentiates(gates)):
            return None
        parts = []
        for tensor in (x, gates):
            if tensor is None:
                continue
            try:
                self.describe(tensor, &operand)
            except RuntimeError:   # the caller refuses the tensor
                return None
            if not UPSWEEP_FLOAT16 <= operand.code <= UPSWEEP_FLOAT64 or (self.is_neg is not None and self.is_neg(tensor)):
                return None
            parts.append((
                operand.device_type, operand.device, operand.code, as_tuple(operand.shape, operand.ndim),
                as_tuple(operand.strides, operand.ndim),
            ))
        return tuple(parts)

    def scan(self, x, gates, gamma, factor, initial, reset, out, final_state, *, int axis, bint reverse,
             bint exclusive, int64_t window):
        """Start a scan of tensors on a device, which the caller has checked.

        x, gates, reset and out have one shape; gamma, initial and final_state lack the axis. Without gates and gamma
        the factor is a number. Without out only the final state is written, in its dtype.
        """
        cdef upsweep_scan request
        cdef Operand summands
        memset(&request, 0, sizeof(request))
        self.fill_operands(&request, &summands, x, gates, gamma, factor, initial, reset, final_state, axis)
        self.fill(&request.out, out, axis)
        request.reverse, request.exclusive, request.window = reverse, exclusive, window
        self.start(
            &request, &summands, axis, request.final_state.dtype if out is None else request.out.dtype, x
        )

    def reduce(self, x, gates, gamma, factor, initial, reset, multiplier, value, dropped, *, int axis, bint reverse):
        """Start to reduce steps to an aggregate, whose parts lack the axis; only `value` may not be None.

        `value` is the final state of the scan from zero or from `initial`.
        """
        cdef upsweep_reduction request
        cdef upsweep_plan plan
        cdef Operand summands
        cdef Functions functions
        cdef int dim
        memset(&request, 0, sizeof(request))
        self.fill_operands(&request.scan, &summands, x, gates, gamma, factor, initial, reset, value, axis)
        self.fill(&request.multiplier, multiplier, -1)
        self.fill(&request.dropped, dropped, -1)
        request.scan.reverse = reverse
        functions = self.complete(&request.scan, &summands, axis, request.scan.final_state.dtype)
        for dim in range(request.scan.n_batch):
            if request.scan.batch_shape[dim] == 0:
                return
        functions.require(functions.plan_reduce(&request, &plan))
        memory = self.reserve(plan.workspace_bytes, x, &request.scan.workspace)
        request.scan.workspace_bytes = plan.workspace_bytes
        functions.require(functions.reduce(&request))

    cdef int fill_operands(self, upsweep_scan* request, Operand* summands, x, gates, gamma, factor, initial, reset,
                           final_state, int axis) except -1:
        """Fill in the operands of a request, not `out`; `summands` becomes the description of x."""
        cdef double complex number
        self.describe(x, summands)
        fill(&request.x, summands, axis)
        self.fill(&request.gates, gates, axis)
        self.fill(&request.reset, reset, axis)
        self.fill(&request.gamma, gamma, -1)
        self.fill(&request.initial, initial, -1)
        self.fill(&request.final_state, final_state, -1)
        if gates is None and gamma is None:
            number = factor
            request.gamma_re, request.gamma_im = number.real, number.imag
        return 0


cdef class CupyCalls(TensorCalls):
    """The calls of cupy, whose arrays have other attributes, and strides in bytes."""

    cdef int describe_attributes(self, array, Operand* to) except -1:
        memory = array.data
        to.code, to.item = self.dtypes.get(array.dtype, -1), array.itemsize
        to.data, to.device, to.device_type = <char*><uintptr_t>memory.ptr, memory.device_id, CUDA
        return self.describe_layout(array.shape, array.strides, to.item, to)
