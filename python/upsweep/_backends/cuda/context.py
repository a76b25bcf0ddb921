"""Execution context of one call on device arrays: the stream, the allocator and the temporaries.

An executor (`scan`, `bincount`, `pairs`, `loops`, `user_scan`) opens a context with the arrays of a call,
describes its operands with it, and starts kernels on its stream. Memory comes from the arrays' library where that
allocates, so that its caching allocator and its streams are respected, else from the driver.
`staging.StagingContext` is the same for numpy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import DeviceView, Operand, Placement, name_of, on_device
from upsweep._backends.cuda import library
from upsweep._backends.cuda.descriptor import ArrayDescriptor, describe
from upsweep._backends.cuda.memory import DeviceMemory
from upsweep._core.layout import memory_order


class ExecutionContext:
    """The stream, the allocator and the temporaries of one call.

    `arrays` are the call's by the names of their arguments; numbers may be on the host. `placement` is their
    library and device, if the caller has checked that they agree.
    """

    def __init__(self, arrays: Mapping[str, Operand | None], placement: Placement | None = None) -> None:
        views = {name: array for name, array in arrays.items() if isinstance(array, DeviceView)}
        placement = placement or _arrays.common_placement({**views})
        assert placement is not None
        self.library, self.device = placement
        self.casts = self.library.computes  # whether a result's dtype can be changed by its library
        library.check_device(self.device)
        producers = [array.origin.stream for array in views.values() if array.origin.stream is not None]
        current = self.library.stream(self.device)
        # Without a current stream, the work goes to the one that a reader of the result will wait for.
        self.stream = current if current is not None else producers[-1] if producers else 0
        for stream in set(producers) - {self.stream}:
            library.synchronize(self.device, stream)
        self._memory: DeviceMemory | None = None
        # Arrays that kernels still read: the library must not reuse their memory for a workspace.
        self._keep_alive: list[DeviceView] = []

    def __enter__(self) -> ExecutionContext:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free what the driver allocated, in stream order."""
        if self._memory is not None:
            self._memory.close()

    @property
    def on_stream(self) -> dict[str, int]:
        """The keywords of functions that start kernels."""
        return {"device": self.device, "stream": self.stream}

    @property
    def resources(self) -> dict[str, Any]:
        """The keywords of functions that start kernels and allocate a workspace."""
        return {"device": self.device, "stream": self.stream, "allocate": self.allocate}

    @property
    def memory(self) -> DeviceMemory:
        """Memory from the driver on the stream, for libraries that do not allocate."""
        if self._memory is None:
            self._memory = DeviceMemory(self.device, self.stream)
        return self._memory

    @property
    def memory_limit(self) -> int | None:
        """The bytes of memory that a result can have at most, if known."""
        return self.library.memory(self.device)

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        """Allocate a workspace, as a `descriptor.Allocate` does."""
        workspace = self.library.workspace(n_bytes, self.device)
        return self.memory.allocate(n_bytes) if workspace is None else workspace

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Operand | None = None) -> Any:
        """Return an uninitialised array, laid out as `like` if that has its shape and repeats nothing."""
        if like is None or like.shape != shape or 0 in like.strides or not self.library.transposes:
            return self.library.empty(shape, dtype, self.device, self.stream)
        order = tuple(memory_order(like.strides))
        return self.library.empty(shape, dtype, self.device, self.stream, order)

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array for this call only, which libraries that do not allocate can have too."""
        if self.library.allocates:
            return self.library.empty(shape, dtype, self.device, self.stream)
        pointer, keep_alive = self.allocate(max(math.prod(shape), 1) * dtype.itemsize)
        return on_device(pointer, shape, dtype, Placement(self.library, self.device), keep_alive)

    def to_device(self, array: Operand) -> ArrayDescriptor:
        """Copy a short host array to the device, for this call."""
        return self._hold(self.library.to_device(array, self.device), array)

    def number(self, array: Operand) -> ArrayDescriptor:
        """Copy one element to the device, for this call."""
        return self._hold(self.library.full(array, self.device), array)

    def _hold(self, view: DeviceView | None, array: Operand) -> ArrayDescriptor:
        if view is None:
            return self.memory.to_device(array)
        self._keep_alive.append(view)
        return describe(view)

    def input(self, array: Operand) -> ArrayDescriptor:
        """Describe an operand that kernels read; a number on the host is sent as one element."""
        if isinstance(array, DeviceView):
            return describe(array)
        repeated = ArrayDescriptor(0, array.shape, (0,) * array.ndim, name_of(array.dtype))
        if array.size == 0:
            return repeated
        element = np.asarray(array[(0,) * array.ndim], array.dtype.newbyteorder("="))
        return repeated._replace(pointer=self.number(element).pointer)

    def optional_input(self, array: Operand | None) -> ArrayDescriptor | None:
        """Describe an operand that may be missing."""
        return None if array is None else self.input(array)

    def factor(self, gamma: Operand | None) -> ArrayDescriptor | complex | None:
        """Describe gamma; a number on the host is a part of the request."""
        if gamma is None or isinstance(gamma, DeviceView):
            return self.optional_input(gamma)
        return complex(gamma[(0,) * gamma.ndim]) if gamma.size else None

    def output(self, array: Operand) -> ArrayDescriptor:
        """Describe an array that kernels write."""
        return describe(array)

    def element(self, array: Operand, index: tuple[int, ...]) -> Any:
        """Return an element of a device array, once the work on the stream is done."""
        pointer = describe(array).pointer + sum(i * stride for i, stride in zip(index, array.strides))
        return np.frombuffer(library.read_bytes(pointer, array.itemsize, **self.on_stream), array.dtype)[0]
