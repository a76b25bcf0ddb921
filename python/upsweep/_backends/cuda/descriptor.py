"""Array descriptors: pointer, shape, strides and dtype of one operand on a device, for the launch modules.

All launch modules of this folder take array descriptors, so that they know no array library. A caller describes
its arrays (`describe` for device views, `_torch.executors` for tensors) and keeps them alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from upsweep._arrays import DeviceView, Operand, name_of

# Returns the pointer of that many bytes on the device, and an object that keeps them from being used for something
# else before the work that was started up to now is done.
Allocate = Callable[[int], tuple[int, object]]


class ArrayDescriptor(NamedTuple):
    """A device array: strides in bytes, dtype by numpy's or torch's name."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def describe(array: Operand) -> ArrayDescriptor:
    """Describe a device view. A host array, for an operand that is not read, and one without elements have 0."""
    pointer = array.pointer if isinstance(array, DeviceView) and array.size else 0
    return ArrayDescriptor(pointer, array.shape, array.strides, name_of(array.dtype))
