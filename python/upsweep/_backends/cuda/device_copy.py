"""A device array that belongs to no array library: `DeviceCopy`, which `te.compat` offers as TVM's NDArray."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from upsweep._arrays import Array
from upsweep._backends.cuda import library
from upsweep._backends.cuda.memory import DeviceMemory

__all__ = ["DeviceCopy", "wait_for", "why_no_device"]


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
