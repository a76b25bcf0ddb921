"""CUDA's driver through ctypes: modules of code that was made at run time, and launches of their kernels.

Everything happens in the primary context of a device, which is torch's, cupy's and that of libupsweep_cuda.so.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from upsweep._backends.cuda.library import CudaError

__all__ = ["Device", "Function", "Memory", "Module", "device"]

_INT, _POINTER, _SIZE, _UNSIGNED = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_ADDRESS = ctypes.c_uint64  # of memory of a device

# name: (arguments, may block). What may block lets go of the GIL; a launch keeps it, since to let go of it would
# cost more than it takes.
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
    "cuLaunchKernel": (
        (_POINTER, *[_UNSIGNED] * 7, _POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER)), False,
    ),
    "cuLaunchCooperativeKernel": ((_POINTER, *[_UNSIGNED] * 7, _POINTER, ctypes.POINTER(_POINTER)), False),
    "cuMemAlloc_v2": ((ctypes.POINTER(_ADDRESS), _SIZE), True),
    "cuMemFree_v2": ((_ADDRESS,), True),
    "cuMemcpyHtoD_v2": ((_ADDRESS, _POINTER, _SIZE), True),
    "cuMemsetD32Async": ((_ADDRESS, _UNSIGNED, _SIZE, _POINTER), False),
}  # fmt: skip

PROCESSORS, MAJOR, MINOR, SHARED = 16, 75, 76, 97  # attributes of a device
DYNAMIC_SHARED = 8  # attribute of a function
_ALWAYS_SHARED = 48 << 10  # bytes that a block may have without that attribute


class _Driver:
    """The loaded driver; its functions are attributes, and raise."""

    def __init__(self) -> None:
        try:
            keeping, releasing = ctypes.PyDLL("libcuda.so.1"), ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RuntimeError(f"NVIDIA's driver cannot be loaded: {error}") from error
        self._texts = {name: getattr(releasing, name) for name in ("cuGetErrorName", "cuGetErrorString")}
        for function in self._texts.values():
            function.argtypes = (_INT, ctypes.POINTER(ctypes.c_char_p))
        for name, (arguments, may_block) in FUNCTIONS.items():
            function = getattr(releasing if may_block else keeping, name)
            function.restype, function.argtypes, function.errcheck = _INT, arguments, self._check
            setattr(self, name, function)
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        getattr(self, name)(*args)

    def _check(self, status: int, function: Any, arguments: Any) -> int:
        if status == 0:
            return status
        words = []
        for text in self._texts.values():
            found = ctypes.c_char_p()
            text(status, ctypes.byref(found))
            words.append((found.value or b"unknown").decode(errors="replace"))
        raise CudaError(f"{function.__name__}: {words[0]}: {words[1]}")


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
        self.shared_bytes = self._attribute(SHARED)  # that a block may have
        self.capability = 10 * self._attribute(MAJOR) + self._attribute(MINOR)

    def _attribute(self, which: int) -> int:
        found = _INT()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(found), which, self._handle)
        return found.value

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The device's context is the thread's current one inside."""
        found = _POINTER()
        self.driver.call("cuCtxGetCurrent", ctypes.byref(found))
        if found.value == self.context:
            yield
            return
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(found))

    def load(self, code: bytes) -> Module:
        return Module(self, code)

    def memory(self, data: bytes) -> Memory:
        return Memory(self, data)

    def fill(self, pointer: int, word: int, n: int, stream: int) -> None:
        """Write a number of 32 bits n times, on a stream, without waiting; a graph can capture it."""
        with self.current():
            self.driver.call("cuMemsetD32Async", pointer, word, n, stream)

    def write_words(self, pointer: int, words: Sequence[int], stream: int) -> None:
        """Write some numbers of 32 bits likewise."""
        for place, word in enumerate(words):
            self.fill(pointer + 4 * place, word, 1, stream)


class Module:
    """A cubin, or PTX, loaded into the context of a device; it stays there as long as this object."""

    def __init__(self, device: Device, code: bytes) -> None:
        self.device = device
        handle = _POINTER()
        with device.current():
            device.driver.call("cuModuleLoadData", ctypes.byref(handle), code)
        self.handle = handle.value or 0
        weakref.finalize(self, _let_go, device, "cuModuleUnload", self.handle).atexit = False

    def function(self, name: str) -> Function:
        return Function(self, name)


class Function:
    """A kernel that takes one structure."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.device = module, module.device
        handle = _POINTER()
        with self.device.current():
            self.device.driver.call("cuModuleGetFunction", ctypes.byref(handle), module.handle, name.encode())
        self.handle = handle.value
        self.shared_bytes = 0

    def blocks_at_once(self, n_threads: int) -> int:
        """How many blocks the whole device runs at the same time."""
        found = _INT()
        with self.device.current():
            self.device.driver.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), self.handle, n_threads,
                self.shared_bytes,
            )  # fmt: skip
        return max(1, found.value) * self.device.n_processors

    def use_shared(self, n_bytes: int) -> None:
        """Launch with so much dynamic shared memory from now on."""
        with self.device.current():
            self.device.driver.call("cuFuncSetAttribute", self.handle, DYNAMIC_SHARED, n_bytes)
        self.shared_bytes = n_bytes

    def launch(
        self, n_blocks: int, n_threads: int, stream: int, structure: ctypes.Structure, shared_bytes: int = 0
    ) -> None:
        """Start the kernel on a stream, with `shared_bytes` or what `use_shared` said of dynamic shared memory.

        The structure is copied before this returns. No blocks, as an empty array has, are no error here.
        """
        if not n_blocks:
            return
        if shared_bytes > max(self.shared_bytes, _ALWAYS_SHARED):
            self.use_shared(shared_bytes)
        arguments = (_POINTER * 1)(ctypes.addressof(structure))
        with self.device.current():
            self.device.driver.call(
                "cuLaunchKernel", self.handle, n_blocks, 1, 1, n_threads, 1, 1, shared_bytes or self.shared_bytes,
                stream, arguments, None,
            )  # fmt: skip

    def launch_together(
        self, n_blocks: int, n_threads: int, stream: int, structure: ctypes.Structure
    ) -> None:  # fmt: skip
        """The same for blocks that wait for each other: all of them run at the same time, or none."""
        arguments = (_POINTER * 1)(ctypes.addressof(structure))
        with self.device.current():
            self.device.driver.call(
                "cuLaunchCooperativeKernel", self.handle, n_blocks, 1, 1, n_threads, 1, 1, self.shared_bytes,
                stream, arguments,
            )  # fmt: skip


class Memory:
    """Bytes on a device, from the host; they stay there as long as this object."""

    def __init__(self, device: Device, data: bytes) -> None:
        self.pointer = 0
        if not data:
            return
        found = _ADDRESS()
        with device.current():
            device.driver.call("cuMemAlloc_v2", ctypes.byref(found), len(data))
            self.pointer = found.value
            weakref.finalize(self, _let_go, device, "cuMemFree_v2", self.pointer).atexit = False
            device.driver.call("cuMemcpyHtoD_v2", self.pointer, data, len(data))


def _let_go(device: Device, name: str, handle: int) -> None:
    """Give back what an object held, unless the driver has ended before."""
    with contextlib.suppress(CudaError), device.current():
        device.driver.call(name, handle)


_lock = threading.Lock()
_driver: _Driver | None = None
_devices: dict[int, Device] = {}


def device(ordinal: int) -> Device:
    """The device, with its context, looked up once.

    Raises
    ------
    RuntimeError
        There is no driver.
    CudaError
        There is no such device.
    """
    global _driver
    found = _devices.get(ordinal)
    if found is None:
        with _lock:
            if _driver is None:
                _driver = _Driver()
            found = _devices.setdefault(ordinal, Device(_driver, ordinal))
    return found
