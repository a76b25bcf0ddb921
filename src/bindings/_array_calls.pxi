# What the calls of `_calls.pyx`, which includes this file and has its imports, are made of: the functions of the loaded
# library, and arrays, streams and memory of one array library.

cdef class Functions:
    """The functions of the loaded library: `address` returns that of a name, `check` raises for a status."""

    cdef object check
    cdef int32_t (*plan_scan)(const upsweep_scan*, int32_t, upsweep_plan*)
    cdef int32_t (*scan)(const upsweep_scan*)
    cdef int32_t (*plan_reduce)(const upsweep_reduction*, upsweep_plan*)
    cdef int32_t (*reduce)(const upsweep_reduction*)
    cdef int32_t (*scan_lines)(upsweep_lines*)
    cdef int32_t (*lines_backward)(const upsweep_lines_backward*)
    cdef int32_t (*plan_count)(const upsweep_count*, int32_t, upsweep_count_plan*)
    cdef int32_t (*count)(const upsweep_count*)
    cdef int32_t (*key_range)(const upsweep_count*, void*)
    cdef int32_t (*plan_histogram)(const upsweep_histogram*, int32_t, upsweep_count_plan*)
    cdef int32_t (*histogram)(const upsweep_histogram*)
    cdef int32_t (*value_range)(const upsweep_count*, void*)
    cdef int32_t (*copy_to_host)(int32_t, void*, void*, const void*, int64_t) noexcept nogil

    def __cinit__(self, address, check):
        self.check = check
        self.plan_scan = <int32_t (*)(const upsweep_scan*, int32_t, upsweep_plan*)><uintptr_t>address("plan_scan")
        self.scan = <int32_t (*)(const upsweep_scan*)><uintptr_t>address("scan")
        self.plan_reduce = <int32_t (*)(const upsweep_reduction*, upsweep_plan*)><uintptr_t>address("plan_reduce")
        self.reduce = <int32_t (*)(const upsweep_reduction*)><uintptr_t>address("reduce")
        self.scan_lines = <int32_t (*)(upsweep_lines*)><uintptr_t>address("scan_lines")
        self.lines_backward = <int32_t (*)(const upsweep_lines_backward*)><uintptr_t>address("lines_backward")
        self.plan_count = <int32_t (*)(const upsweep_count*, int32_t, upsweep_count_plan*)><uintptr_t>address("plan_count")
        self.count = <int32_t (*)(const upsweep_count*)><uintptr_t>address("count")
        self.key_range = <int32_t (*)(const upsweep_count*, void*)><uintptr_t>address("key_range")
        self.plan_histogram = (
            <int32_t (*)(const upsweep_histogram*, int32_t, upsweep_count_plan*)><uintptr_t>address("plan_histogram")
        )
        self.histogram = <int32_t (*)(const upsweep_histogram*)><uintptr_t>address("histogram")
        self.value_range = <int32_t (*)(const upsweep_count*, void*)><uintptr_t>address("value_range")
        self.copy_to_host = (
            <int32_t (*)(int32_t, void*, void*, const void*, int64_t) noexcept nogil><uintptr_t>address("copy_to_host")
        )

    cdef int require(self, int32_t status) except -1:
        if status != UPSWEEP_OK:
            self.check(status)
        return 0

    cdef int read(self, const upsweep_count* request, void* source, int64_t* words, int64_t n_bytes) except -1:
        """Read memory of the device of a request, once the work on its stream is done."""
        cdef int32_t device = request.device, status
        cdef void* stream = request.stream
        with nogil:
            status = self.copy_to_host(device, stream, words, source, n_bytes)
        return self.require(status)


cdef class ArrayCalls:
    """What calls of one array library have in common: descriptions, allocation, the library's functions.

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

    cdef object scratch(self, int64_t n_bytes, like, const Operand* described, void** pointer):
        """Return memory on the device of `like`, without the cost of `workspace`, which asks the library's dispatcher."""
        cdef Operand memory
        result = self.new(((n_bytes + 7) // 8,), (1,), UPSWEEP_INT64, like, described, &memory)
        pointer[0] = memory.data
        return result

    cdef object reserve(self, int64_t n_bytes, like, void** pointer):
        """Return what owns so many bytes on the device of `like`, and set their address; None and NULL for none."""
        pointer[0] = NULL
        if not n_bytes:
            return None
        address, memory = self.workspace(n_bytes, like.device)
        pointer[0] = <void*><uintptr_t>address
        return memory

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
