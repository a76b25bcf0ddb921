"""Array descriptors: pointer, shape, strides and dtype of one operand on a device, for the launch modules.

All launch modules of this folder take array descriptors, so that they know no array library. A caller describes
its arrays (`describe` for device views, `_torch.executors` for tensors) and keeps them alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class ScanArrays(NamedTuple):
    """What a scan reads and writes, in scan order: arrays, or their layouts.

    An input is None if it is a constant of the recurrence. A state is a number or an array of the shape of the
    columns; a final state is None if it is not returned.
    """

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    states: Sequence[Any]
    finals: Sequence[Any]

    @property
    def operands(self) -> tuple[Any, ...]:
        """All of them, in the order in which a launch takes their addresses."""
        return (*self.inputs, *self.outputs, *self.states, *self.finals)


def describe(array: Operand) -> ArrayDescriptor:
    """Describe a device view. A host array, for an operand that is not read, and one without elements have 0."""
    pointer = array.pointer if isinstance(array, DeviceView) and array.size else 0
    return ArrayDescriptor(pointer, array.shape, array.strides, name_of(array.dtype))
