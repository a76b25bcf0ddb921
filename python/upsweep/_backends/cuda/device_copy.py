"""An array in a device's memory that belongs to no array library."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._backends.cuda import scan_launch

__all__ = ["DeviceCopy", "wait_for", "why_no_device"]


def why_no_device(device: int) -> str | None:
    """What keeps arrays from lying on a device; None if nothing does."""
    try:
        scan_launch.check_device(device)
    except (RuntimeError, ImportError) as error:
        return str(error)
    return None


def wait_for(device: int) -> None:
    """Wait for what was started on the device's default stream."""
    scan_launch.synchronize(device, 0)


class DeviceCopy:
    """A copy of an array of numpy on a device, on its default stream; others can read it where it lies."""

    def __init__(self, array: NDArray[Any], device: int) -> None:
        self.shape, self.dtype, self.device = array.shape, array.dtype.newbyteorder("="), device
        pointer = ctypes.c_void_p()
        library = scan_launch.load()
        library.allocate(device, 0, max(1, array.nbytes), ctypes.byref(pointer))
        self.pointer = pointer.value or 0
        weakref.finalize(self, library.free, device, 0, self.pointer).atexit = False
        self.fill(array)

    def fill(self, array: NDArray[Any]) -> None:
        """Take the values of an array of the same shape."""
        data = np.ascontiguousarray(array, self.dtype)
        scan_launch.load().copy_to_device(self.device, 0, self.pointer, data.ctypes.data, data.nbytes)

    def fetch(self) -> NDArray[Any]:
        """The values as an array of numpy, when all that was started before is done."""
        result = np.empty(self.shape, self.dtype)
        scan_launch.load().copy_to_host(self.device, 0, result.ctypes.data, self.pointer, result.nbytes)
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 3,
            "strides": None, "stream": 1,
        }  # fmt: skip
