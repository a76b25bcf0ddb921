"""Adapter of cupy. cupy itself is never imported here: its arrays exist only if the user has imported it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from upsweep._arrays.device_view import Array, DeviceView, Origin
from upsweep._arrays.interface import AnyDType, Library, Shape


class _Cupy(Library):
    allocates = computes = transposes = has_current_stream = True

    @property
    def cupy(self) -> Any:
        return sys.modules["cupy"]

    numpy_like = cupy

    def on(self, ordinal: int) -> contextlib.AbstractContextManager[Any]:
        return self.cupy.cuda.Device(ordinal)

    def view(self, value: Any, name: str) -> DeviceView:
        # cupy orders its arrays by its current stream, so that no stream of a producer is recorded.
        origin = Origin(value, self, value.device.id, None)
        return DeviceView(value.data.ptr, value.shape, value.strides, value.dtype, origin)

    def stream(self, ordinal: int) -> int:
        with self.on(ordinal):
            return int(self.cupy.cuda.get_current_stream().ptr)

    def new(self, shape: Shape, dtype: AnyDType, ordinal: int, stream: int, order: Shape | None = None) -> Any:
        with self.on(ordinal):
            if order is None or order == tuple(range(len(shape))):
                return self.cupy.empty(shape, dtype)
            memory = self.cupy.empty(tuple(shape[axis] for axis in order), dtype)
            return memory.transpose(tuple(map(order.index, range(len(shape)))))

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def layout_key(self, array: Any) -> Hashable:
        dtype = array.dtype
        return array.shape, array.strides, dtype, array.device.id, array.data.ptr % dtype.itemsize

    def full(self, number: Array, ordinal: int) -> DeviceView:
        with self.on(ordinal):  # a kernel fills it: CUDA graphs cannot capture a copy from pageable memory
            return self.view(self.cupy.full((), number[()], number.dtype), "number")

    def workspace(self, n_bytes: int, ordinal: int) -> tuple[int, object]:
        with self.on(ordinal):
            memory = self.cupy.empty(n_bytes, np.uint8)
        return int(memory.data.ptr), memory

    def to_device(self, array: Array, ordinal: int) -> DeviceView:
        with self.on(ordinal):
            return self.view(self.cupy.asarray(array), "array")

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        with self.on(arrays[0].device.id):
            return self.cupy.stack(arrays, axis)

    def memory(self, ordinal: int) -> int:
        return int(self.cupy.cuda.Device(ordinal).mem_info[1])

    def cast(self, array: DeviceView, dtype: np.dtype[Any], name: str) -> DeviceView:
        with self.on(array.origin.ordinal or 0):
            return self.view(array.origin.owner.astype(dtype), name)


CUPY = _Cupy("cupy.ndarray")
