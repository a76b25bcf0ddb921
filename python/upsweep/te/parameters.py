"""Array parameters of a built function: their checks, and the sizes that their shapes determine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _arrays
from upsweep._compiler.loops.expressions import Expr, key
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep.te.tensors import PlaceholderOp, Tensor

__all__ = ["Array", "Parameter", "is_plain"]

Array = NDArray[Any]


class Parameter:
    """One array parameter.

    `bound` are the dimensions that determine a size, `checked` those that have to agree with sizes; `known` are
    the keys of the sizes that are determined already, to which this adds its own.
    """

    def __init__(self, tensor: Tensor, known: set[str]) -> None:
        self.tensor, self.name, self.dtype = tensor, tensor.name, np.dtype(tensor.dtype)
        self.is_output = not isinstance(tensor.op, PlaceholderOp)
        self.extents = [evaluator(extent) for extent in tensor.shape]
        self.bound: list[tuple[int, str]] = []
        self.checked: list[tuple[int, Callable[[Sizes], int], Expr]] = []
        for d, extent in enumerate(tensor.shape):
            if extent.op == "var" and key(extent) not in known:
                known.add(key(extent))
                self.bound.append((d, key(extent)))
            else:
                self.checked.append((d, self.extents[d], extent))

    def _shape_error(self, shape: tuple[int, ...], detail: str = "") -> ValueError:
        expected = f"({', '.join(map(repr, self.tensor.shape))}{',' * (self.tensor.ndim == 1)})"
        return ValueError(f"{self.name}: expected shape {expected}{detail}, got {shape}; {self._origin()}")

    def _origin(self) -> str:
        """The end of a message: the line of the user's program that made the tensor."""
        return f"{self.name} is made at {self.tensor.op.line}"

    def check_sizes(self, shape: tuple[int, ...], sizes: Sizes) -> None:
        """Raise where a shape disagrees with the sizes."""
        for d, extent, expr in self.checked:
            expected = extent(sizes)
            if shape[d] != expected:
                raise self._shape_error(shape, "" if expr.op == "const" else f", where {expr!r} is {expected}")

    def as_array(self, value: Any, *, on_device: bool = False) -> Array:
        """An argument as an array of the parameter's dtype and rank; a view of a device's memory if allowed."""
        array = value
        if type(value) is not np.ndarray:
            is_array = isinstance(value, np.ndarray) or (on_device and _arrays.any_on_device(value))
            if self.is_output and not is_array:
                raise TypeError(f"{self.name}: expected an array to fill, got {_arrays.type_name(value)}")
            array = _arrays.as_operand(value, self.name)
            if isinstance(array, _arrays.DeviceView) and not on_device:
                raise TypeError(f"{self.name}: built for the CPU, got an array of a device")
        if array.dtype != self.dtype and array.dtype.newbyteorder("=") != self.dtype:
            raise TypeError(f"{self.name}: expected dtype {self.dtype.name}, got {array.dtype}; {self._origin()}")
        if array.ndim != self.tensor.ndim:
            raise self._shape_error(array.shape)
        if self.is_output and not array.flags.writeable:
            raise ValueError(f"{self.name}: the array to fill is read-only")
        # Subclasses of numpy's array have no meaning of their own on the CPU.
        return array if on_device else np.asarray(array)


def is_plain(array: Array) -> bool:
    """Whether a kernel can use an array in place: native, aligned, contiguous in the last dimension."""
    item = array.itemsize
    if array.ndim and array.shape[-1] > 1 and array.strides[-1] != item:
        return False
    return array.dtype.isnative and array.flags.aligned and all(stride % item == 0 for stride in array.strides)
