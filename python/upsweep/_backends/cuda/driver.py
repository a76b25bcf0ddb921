"""CUDA's driver API through ctypes: modules of kernels that were compiled at run time, and their launches.

All calls run in the primary context of a device, which torch, cupy and libupsweep_cuda.so use, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

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

    def write_words(self, pointer: int, words: Sequence[int], stream: int) -> None:
        """Write a few numbers of 32 bits likewise."""
        for n, word in enumerate(words):
            self.fill(pointer + 4 * n, word, 1, stream)

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
        self, n_blocks: int, n_threads: int, stream: int, structure: ctypes.Structure, shared_bytes: int = 0
    ) -> None:
        """Start the kernel on a stream; the dynamic shared memory is `shared_bytes`, else that of `use_shared`.

        The structure is copied before this returns. Without blocks, as for an empty array, nothing is started.
        """
        if not n_blocks:
            return
        if shared_bytes > max(self.shared_bytes, _DEFAULT_SHARED):
            self.use_shared(shared_bytes)
        arguments = (_POINTER * 1)(ctypes.addressof(structure))
        self.device.call(
            "cuLaunchKernel", self.handle, n_blocks, 1, 1, n_threads, 1, 1, shared_bytes or self.shared_bytes,
            stream, arguments, None,
        )  # fmt: skip

    def launch_together(self, n_blocks: int, n_threads: int, stream: int, structure: ctypes.Structure) -> None:
        """Start a kernel whose blocks wait for each other: all of them run at the same time, or none."""
        arguments = (_POINTER * 1)(ctypes.addressof(structure))
        self.device.call(
            "cuLaunchCooperativeKernel", self.handle, n_blocks, 1, 1, n_threads, 1, 1, self.shared_bytes, stream,
            arguments,
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
