"""Arrays with ``__cuda_array_interface__``, and the base class of the adapters of array libraries.

`Library` describes arrays by version 3 of the interface. It knows nothing else about them, and in particular not
how to allocate one. The adapters of numba (here), `cupy` and `torch` override what their library can do. The CUDA
executors call an adapter for memory, streams and results.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from upsweep._arrays.device_view import Array, DeviceView, Origin, contiguous_strides

Shape = tuple[int, ...]
AnyDType = np.dtype[Any] | str  # a name for dtypes that numpy lacks


class Library:
    """The adapter of a library whose arrays are on CUDA devices; this one knows only the interface."""

    allocates = False
    computes = False  # arrays have arithmetic operators
    transposes = False  # results may have any order of axes in memory
    has_current_stream = False  # all arrays are ordered by the library's current stream
    numpy_like: Any = None  # the module whose functions have the names and the meaning of numpy's, if there is one

    def __init__(self, name: str) -> None:
        self.name = name

    def on(self, ordinal: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the library creates arrays on this device."""
        return contextlib.nullcontext()

    def view(self, value: Any, name: str) -> DeviceView:
        """Describe an array; errors call it `name`."""
        interface = value.__cuda_array_interface__
        if interface.get("mask") is not None:
            raise TypeError(f"{name}: arrays with a mask are not supported")
        try:
            dtype = np.dtype(interface["typestr"])
        except TypeError:
            raise TypeError(f"{name}: its typestr {interface['typestr']!r} names no dtype") from None
        if not dtype.isnative:
            raise TypeError(f"{name}: expected native byte order on a device, got dtype {dtype}")
        pointer, is_read_only = interface["data"]
        shape, strides, stream = tuple(interface["shape"]), interface.get("strides"), interface.get("stream")
        if stream == 0:
            raise ValueError(f"{name}: its stream is 0, which the CUDA array interface leaves without meaning")
        if stream == 1:
            stream = 0  # the runtime's own code for the legacy default stream
        ordinal = None
        if 0 not in shape:
            if not pointer:
                raise ValueError(f"{name}: its pointer is null")
            ordinal = _device_of(pointer)
        strides = contiguous_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
        origin = Origin(value, self, ordinal, stream)
        return DeviceView(pointer or 0, shape, strides, dtype, origin, not is_read_only)

    def stream(self, ordinal: int) -> int | None:
        """Return the current stream; None if the library has no such thing."""
        return None

    def empty(
        self, shape: Shape, dtype: AnyDType, ordinal: int, stream: int, order: Shape | None = None
    ) -> DeviceView:
        """Describe a `new` array."""
        return self.view(self.new(shape, dtype, ordinal, stream, order), "out")

    def new(self, shape: Shape, dtype: AnyDType, ordinal: int, stream: int, order: Shape | None = None) -> Any:
        """Allocate an array; `order` lists its axes from the outermost in memory to the innermost."""
        raise TypeError(
            f"out: has to be given, and what goes beyond it cannot be had (return_final, carries), since upsweep "
            f"does not know how to allocate a {self.name}"
        )

    def address(self, array: Any) -> int:
        """Return the address of the first element."""
        return int(array.__cuda_array_interface__["data"][0])

    def layout_key(self, array: Any) -> Hashable:
        """Return a key that is equal for arrays of equal layout, dtype and device; None: do not cache."""
        return None

    def full(self, number: Array, ordinal: int) -> DeviceView | None:
        """Create an array of one element without a copy from the host; None if the library cannot."""
        return None

    def workspace(self, n_bytes: int, ordinal: int) -> tuple[int, object] | None:
        """Allocate memory on the current stream: its address and its owner; None if the library cannot."""
        return None

    def to_device(self, array: Array, ordinal: int) -> DeviceView | None:
        """Copy a short host array to the device, in stream order and without waiting; None if it cannot."""
        return None

    def memory(self, ordinal: int) -> int | None:
        """Return the size of the device's memory in bytes; None if the library does not know."""
        return None

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        """Stack the user's arrays along a new axis."""
        raise TypeError(f"upsweep does not know how to put several of a {self.name} into one")

    def cast(self, array: DeviceView, dtype: np.dtype[Any], name: str) -> DeviceView:
        """Convert the array that `array` describes as a whole to another dtype."""
        raise TypeError(f"{name}: a {self.name} of dtype {array.dtype} has to be cast to {dtype} beforehand")


def _device_of(pointer: int) -> int:
    """Ask the CUDA driver for the ordinal of the device that this memory belongs to."""
    ordinal = ctypes.c_int()
    attribute = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"an array says that it is on a CUDA device, but there is no driver: {error}") from None
    status = driver.cuPointerGetAttribute(ctypes.byref(ordinal), attribute, ctypes.c_uint64(pointer))
    if status:
        raise ValueError(f"the CUDA driver knows no memory at {pointer:#x} (error {status})")
    return ordinal.value


class _Numba(Library):
    """The adapter of numba.cuda, which allocates; streams are those of the interface."""

    allocates = True

    def new(self, shape: Shape, dtype: AnyDType, ordinal: int, stream: int, order: Shape | None = None) -> Any:
        cuda = importlib.import_module("numba.cuda")
        with cuda.gpus[ordinal]:
            bound = cuda.external_stream(stream) if stream else 0
            return cuda.device_array(shape, dtype, stream=bound)


NUMBA = _Numba("numba.cuda device array")
