"""Adapter of torch's memory and streams, for functions that follow numpy's rules on tensors.

`_torch` describes its CUDA tensors with this adapter. Arrays that only DLPack describes use it too, when torch
takes them over on the device (`dlpack`).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from upsweep._arrays.device_view import Array, DeviceView, Origin
from upsweep._arrays.dtypes import name_of
from upsweep._arrays.interface import AnyDType, Library, Shape


class _Torch(Library):
    allocates = computes = has_current_stream = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Calls with the same bins send the same thresholds.
        self._pinned = functools.lru_cache(maxsize=64)(self._pin)
        self._captured: list[Any] = []

    @property
    def torch(self) -> Any:
        return sys.modules["torch"]

    def view(self, value: Any, name: str) -> DeviceView:
        text = str(value.dtype).removeprefix("torch.")
        dtype = bfloat16(name) if text == "bfloat16" else np.dtype(text)
        strides = tuple(stride * value.element_size() for stride in value.stride())
        origin = Origin(value, self, value.get_device(), None)
        return DeviceView(value.data_ptr(), tuple(value.shape), strides, dtype, origin)

    def stream(self, ordinal: int) -> int:
        return int(self.torch._C._cuda_getCurrentRawStream(ordinal))

    def _dtype(self, dtype: np.dtype[Any] | str) -> Any:
        return getattr(self.torch, dtype if isinstance(dtype, str) else name_of(dtype))

    def new(self, shape: Shape, dtype: AnyDType, ordinal: int, stream: int, order: Shape | None = None) -> Any:
        return self.torch.empty(shape, dtype=self._dtype(dtype), device=f"cuda:{ordinal}")

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def full(self, number: Array, ordinal: int) -> DeviceView:
        memory = self.torch.full((), number.item(), dtype=self._dtype(number.dtype), device=f"cuda:{ordinal}")
        return self.view(memory, "number")

    def workspace(self, n_bytes: int, ordinal: int) -> tuple[int, object]:
        memory = self.torch.empty(n_bytes, dtype=self.torch.uint8, device=f"cuda:{ordinal}")
        return int(memory.data_ptr()), memory

    def to_device(self, array: Array, ordinal: int) -> DeviceView:
        if not array.size:
            return self.empty(array.shape, array.dtype, ordinal, 0)
        memory = self._pinned(array.tobytes())
        if self.torch.cuda.is_current_stream_capturing():
            self._captured.append(memory)  # every replay of the graph reads it again
        copy = memory.to(f"cuda:{ordinal}", non_blocking=True)
        return self.view(copy.view(self._dtype(array.dtype)).reshape(array.shape), "array")

    def _pin(self, data: bytes) -> Any:
        """Copy the bytes to pinned memory, from which a copy to the device does not wait."""
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).pin_memory()

    def memory(self, ordinal: int) -> int:
        return int(self.torch.cuda.get_device_properties(ordinal).total_memory)

    def cast(self, array: DeviceView, dtype: np.dtype[Any], name: str) -> DeviceView:
        return self.view(array.origin.owner.to(self._dtype(dtype)), name)


def bfloat16(name: str) -> np.dtype[Any]:
    """Return ml_dtypes' dtype of the argument `name`."""
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"{name}: bfloat16 needs the package ml_dtypes") from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


TORCH = _Torch("array")
