"""Device memory from the CUDA driver: stream-ordered allocations of one call, and copies from and to the host.

For numpy arrays (`staging`) and for array libraries that allocate nothing (`context`). `DeviceCopy` is an array
of no library, which `te.compat` offers as TVM's NDArray.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np

from upsweep._arrays import Array, contiguous_strides
from upsweep._backends.cuda import library
from upsweep._backends.cuda.descriptor import ArrayDescriptor


class DeviceMemory:
    """Allocations of one call on its stream, freed together."""

    def __init__(self, device: int, stream: int = 0) -> None:
        self.device, self.stream, self.library = device, stream, library.load()
        self._pointers: list[int] = []

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        """Allocate as a `descriptor.Allocate` does; `close` frees the memory."""
        pointer = ctypes.c_void_p()
        self.library.allocate(self.device, self.stream, n_bytes, ctypes.byref(pointer))
        self._pointers.append(pointer.value or 0)
        return self._pointers[-1], None

    def close(self) -> None:
        """Free all allocations, in stream order."""
        while self._pointers:
            self.library.free(self.device, self.stream, self._pointers.pop())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayDescriptor:
        """Allocate an uninitialised array in C order."""
        pointer, _ = self.allocate(dtype.itemsize * math.prod(max(n, 1) for n in shape))
        return ArrayDescriptor(pointer, shape, contiguous_strides(shape, dtype.itemsize), dtype.name)

    def to_device(self, array: Array) -> ArrayDescriptor:
        """Copy an array to the device; axes of stride 0, which repeat elements, are copied once and keep it."""
        repeats = [n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides)]
        once = array[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]
        data = np.ascontiguousarray(once, dtype=array.dtype.newbyteorder("="))
        target = self.empty(data.shape, data.dtype)
        self.copy_in(data, target)
        strides = tuple(0 if repeat else stride for repeat, stride in zip(repeats, target.strides))
        return target._replace(shape=array.shape, strides=strides)

    def copy_in(self, array: Array, target: ArrayDescriptor) -> None:
        """Copy an array of native byte order to a device array in C order."""
        data = np.ascontiguousarray(array)
        self.library.copy_to_device(self.device, self.stream, target.pointer, data.ctypes.data, data.nbytes)

    def to_host(self, source: ArrayDescriptor, target: Array) -> None:
        """Copy a device array in C order to `target`, of any strides and byte order."""
        direct = target.flags.c_contiguous and target.dtype.isnative
        buffer = target if direct else np.empty(target.shape, target.dtype.newbyteorder("="))
        self.library.copy_to_host(self.device, self.stream, buffer.ctypes.data, source.pointer, buffer.nbytes)
        if buffer is not target:
            target[...] = buffer


class DeviceCopy:
    """A device copy of a numpy array, on the default stream; it has the CUDA array interface."""

    def __init__(self, array: Array, device: int) -> None:
        self.shape, self.dtype = array.shape, array.dtype.newbyteorder("=")
        self._memory = DeviceMemory(device)
        weakref.finalize(self, self._memory.close).atexit = False
        self._array = self._memory.empty(self.shape, self.dtype)
        self.fill(array)

    def fill(self, array: Array) -> None:
        """Copy the values of an array of the same shape."""
        self._memory.copy_in(np.ascontiguousarray(array, self.dtype), self._array)

    def fetch(self) -> Array:
        """Return the values as a numpy array, once all work started before is done."""
        result = np.empty(self.shape, self.dtype)
        self._memory.to_host(self._array, result)
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self._array.pointer, False), "version": 3,
            "strides": None, "stream": 1,
        }  # fmt: skip


def why_no_device(device: int) -> str | None:
    """Return why arrays cannot be on this device, or None."""
    try:
        library.check_device(device)
    except (RuntimeError, ImportError) as error:
        return str(error)
    return None


def wait_for(device: int) -> None:
    """Wait for the work on the device's default stream."""
    library.synchronize(device, 0)
