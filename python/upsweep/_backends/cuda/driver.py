"""CUDA's driver API through ctypes: modules of kernels that were compiled at run time, and their launches.

All calls run in the primary context of a device, which torch, cupy and libupsweep_cuda.so use, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from upsweep._backends.cuda.descriptor import Allocate
from upsweep._backends.cuda.library import CudaError

_INT, _POINTER, _SIZE, _UNSIGNED = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_ADDRESS = ctypes.c_uint64  # of device memory
_LAUNCH = (_POINTER, *[_UNSIGNED] * 7, _POINTER, ctypes.POINTER(_POINTER))

# name: (arguments, whether the call may block). A call that may block releases the GIL; a launch holds it, since
# releasing it would cost more than the launch.
FUNCTIONS: dict[str, tuple[tuple[Any, ...], bool]] = {
    "cuInit": ((_UNSIGNED,), True),
    "cuDeviceGet": ((ctypes.POINTER(_INT), _INT), False),
    "cuDeviceGetAttribute": ((ctypes.POINTER(_INT), _INT, _INT), False),
    "cuDevicePrimaryCtxRetain": ((ctypes.POINTER(_POINTER), _INT), True),
    "cuCtxGetCurrent": ((ctypes.POINTER(_POINTER),), False),
    "cuCtxPushCurrent_v2": ((_POINTER,), False),
    "cuCtxPopCurrent_v2": ((ctypes.POINTER(_POINTER),), False),
    "cuModuleLoadData": ((ctypes.POINTER(_POINTER), ctypes.c_char_p), True),
    "cuModuleUnload": ((_POINTER,), True),
    "cuModuleGetFunction": ((ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p), True),
    "cuFuncSetAttribute": ((_POINTER, _INT, _INT), False),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": ((ctypes.POINTER(_INT), _POINTER, _INT, _SIZE), False),
    "cuLaunchKernel": ((*_LAUNCH, ctypes.POINTER(_POINTER)), False),
    "cuLaunchCooperativeKernel": (_LAUNCH, False),
    "cuMemAlloc_v2": ((ctypes.POINTER(_ADDRESS), _SIZE), True),
    "cuMemFree_v2": ((_ADDRESS,), True),
    "cuMemcpyHtoD_v2": ((_ADDRESS, _POINTER, _SIZE), True),
    "cuMemsetD32Async": ((_ADDRESS, _UNSIGNED, _SIZE, _POINTER), False),
}

PROCESSORS, MAJOR, MINOR, SHARED = 16, 75, 76, 97  # attributes of a device
DYNAMIC_SHARED = 8  # attribute of a function
_DEFAULT_SHARED = 48 << 10  # bytes that a block may have without that attribute
_WORD, _DOUBLE = struct.Struct("Q"), struct.Struct("d")


class _Driver:
    """The loaded driver, whose functions raise exceptions."""

    def __init__(self) -> None:
        try:
            holding_gil, releasing_gil = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RuntimeError(f"NVIDIA's driver cannot be loaded: {error}") from error
        self._texts = [getattr(releasing_gil, name) for name in ("cuGetErrorName", "cuGetErrorString")]
        for function in self._texts:
            function.argtypes = (_INT, ctypes.POINTER(ctypes.c_char_p))
        self._functions: dict[str, Any] = {}
        for name, (arguments, may_block) in FUNCTIONS.items():
            function = getattr(releasing_gil if may_block else holding_gil, name)
            function.restype, function.argtypes, function.errcheck = _INT, arguments, self._check
            self._functions[name] = function
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        self._functions[name](*args)

    def _check(self, status: int, function: Any, arguments: Any) -> int:
        if status == 0:
            return status
        descriptions = []
        for text in self._texts:
            description = ctypes.c_char_p()
            text(status, ctypes.byref(description))
            descriptions.append((description.value or b"unknown").decode(errors="replace"))
        raise CudaError(f"{function.__name__}: {descriptions[0]}: {descriptions[1]}")


class Device:
    """A device and its primary context."""

    def __init__(self, driver: _Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        handle, context = _INT(), _POINTER()
        driver.call("cuDeviceGet", ctypes.byref(handle), ordinal)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.context = context.value
        self._handle = handle.value
        self.n_processors = self._attribute(PROCESSORS)
        self.shared_bytes = self._attribute(SHARED)  # of a block, at most
        self.capability = 10 * self._attribute(MAJOR) + self._attribute(MINOR)

    def _attribute(self, attribute: int) -> int:
        value = _INT()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._handle)
        return value.value

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the driver with the device's context as the current one of the thread."""
        call, previous = self.driver.call, _POINTER()
        call("cuCtxGetCurrent", ctypes.byref(previous))
        if previous.value == self.context:
            call(name, *args)
            return
        call("cuCtxPushCurrent_v2", self.context)
        try:
            call(name, *args)
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(previous))

    def load(self, code: bytes) -> Module:
        return Module(self, code)

    def memory(self, data: bytes) -> Memory:
        return Memory(self, data)

    def fill(self, pointer: int, word: int, n: int, stream: int) -> None:
        """Write a number of 32 bits n times, on a stream, without waiting; a graph can capture it."""
        self.call("cuMemsetD32Async", pointer, word, n, stream)

    def release(self, name: str, handle: int) -> None:
        """Free what an object of this device owned; at the end of a process the driver may have ended before."""
        with contextlib.suppress(CudaError):
            self.call(name, handle)


class Module:
    """A cubin, or PTX, loaded into the context of a device for the lifetime of this object."""

    def __init__(self, device: Device, code: bytes) -> None:
        self.device = device
        handle = _POINTER()
        device.call("cuModuleLoadData", ctypes.byref(handle), code)
        self.handle = handle.value or 0
        weakref.finalize(self, device.release, "cuModuleUnload", self.handle).atexit = False

    def function(self, name: str) -> Function:
        return Function(self, name)


class Function:
    """A kernel that takes one structure."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.device = module, module.device
        handle = _POINTER()
        self.device.call("cuModuleGetFunction", ctypes.byref(handle), module.handle, name.encode())
        self.handle = handle.value
        self.shared_bytes = 0

    def blocks_at_once(self, n_threads: int) -> int:
        """Return how many blocks the whole device runs at the same time."""
        n_blocks = _INT()
        self.device.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(n_blocks), self.handle, n_threads,
            self.shared_bytes,
        )  # fmt: skip
        return max(1, n_blocks.value) * self.device.n_processors

    def use_shared(self, n_bytes: int) -> None:
        """Launch with this much dynamic shared memory from now on."""
        self.device.call("cuFuncSetAttribute", self.handle, DYNAMIC_SHARED, n_bytes)
        self.shared_bytes = n_bytes

    def launch(
        self, n_blocks: int, n_threads: int, stream: int, structure: Any, shared_bytes: int = 0,
        together: bool = False,
    ) -> None:  # fmt: skip
        """Start the kernel on a stream; the dynamic shared memory is `shared_bytes`, else that of `use_shared`.

        The structure is copied before this returns. Without blocks, as for an empty array, nothing is started.
        `together`: a cooperative launch, whose blocks wait for each other; all of them run at once, or none.
        """
        if not n_blocks:
            return
        if shared_bytes > max(self.shared_bytes, _DEFAULT_SHARED):
            self.use_shared(shared_bytes)
        arguments = (_POINTER * 1)(ctypes.addressof(structure))
        name, extra = ("cuLaunchCooperativeKernel", ()) if together else ("cuLaunchKernel", (None,))
        self.device.call(
            name, self.handle, n_blocks, 1, 1, n_threads, 1, 1, shared_bytes or self.shared_bytes, stream,
            arguments, *extra,
        )  # fmt: skip


class Memory:
    """A copy of host bytes on a device, for the lifetime of this object."""

    def __init__(self, device: Device, data: bytes) -> None:
        self.pointer = 0
        if not data:
            return
        address = _ADDRESS()
        device.call("cuMemAlloc_v2", ctypes.byref(address), len(data))
        self.pointer = address.value
        weakref.finalize(self, device.release, "cuMemFree_v2", self.pointer).atexit = False
        device.call("cuMemcpyHtoD_v2", self.pointer, data, len(data))


class Launch(NamedTuple):
    """A kernel, its grid and the other arguments of `Function.launch`.

    `loops` are loops of the host around it, outermost first: the word of each index, and its number of steps.
    """

    function: Function
    n_blocks: int
    n_threads: int
    shared_bytes: int = 0
    together: bool = False
    loops: tuple[tuple[int, int], ...] = ()


class KernelSequence:
    """Kernels that take one structure, complete but for the operands and the temporary memory of a call.

    The structure consists of fields of 8 bytes, the words. `addresses` and `numbers` are pairs of a word and the
    position of the operand that it holds, as an integer or as a double. The words `in_memory` are offsets in the
    temporary memory, of which the first `n_filled` bytes are filled with ones before the first kernel.
    """

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self._words: Any = ctypes.c_uint64 * (ctypes.sizeof(structure) // 8)
        self.addresses: list[tuple[int, int]] = []
        self.numbers: list[tuple[int, int]] = []
        self.in_memory: list[int] = []
        self.launches: list[Launch] = []
        self.has_loops = False  # of the host
        self.n_filled = 0

    def start(self, operands: Sequence[Any], memory: int, stream: int) -> None:
        """Launch the kernels. Each call copies the structure, since several threads may call at once."""
        words, launches = self._words.from_buffer_copy(self._structure), self.launches
        for word, operand in self.addresses:
            words[word] = operands[operand]
        for word, operand in self.numbers:
            (words[word],) = _WORD.unpack(_DOUBLE.pack(operands[operand]))
        for word in self.in_memory:
            words[word] += memory
        if self.n_filled:
            launches[0].function.device.fill(memory, 0xFFFFFFFF, self.n_filled // 4, stream)
        for launch in _unrolled(launches, words) if self.has_loops else launches:
            function, n_blocks, n_threads, shared_bytes, together, _ = launch
            function.launch(n_blocks, n_threads, stream, words, shared_bytes, together)


def _unrolled(launches: Sequence[Launch], words: Any, depth: int = 0) -> Iterator[Launch]:
    """Iterate over launches; those in a loop of the host once for each value of its index, set in `words`."""
    for loop, group in itertools.groupby(launches, lambda launch: launch.loops[depth : depth + 1]):
        if not loop:
            yield from group
            continue
        inside = list(group)
        (word, n_steps), *_ = loop
        for words[word] in range(n_steps):
            yield from _unrolled(inside, words, depth + 1)


class PreparedCall(NamedTuple):
    """A call except for its operands: kernels in order, and the bytes of temporary memory that they share."""

    sequences: list[KernelSequence]
    n_bytes: int

    def start(self, operands: Sequence[Any], stream: int, allocate: Allocate) -> None:
        """Start the kernels on a stream. `operands` are addresses of arrays, or numbers."""
        memory, owner = allocate(self.n_bytes) if self.n_bytes else (0, None)
        for sequence in self.sequences:
            sequence.start(operands, memory, stream)
        del owner  # the allocator reuses the memory in stream order


_lock = threading.Lock()
_driver: _Driver | None = None
_devices: dict[int, Device] = {}


def device(ordinal: int) -> Device:
    """Return the device and its context, which the first call looks up.

    Raises RuntimeError without a driver, CudaError without such a device.
    """
    global _driver
    result = _devices.get(ordinal)
    if result is None:
        with _lock:
            if _driver is None:
                _driver = _Driver()
            result = _devices.setdefault(ordinal, Device(_driver, ordinal))
    return result
