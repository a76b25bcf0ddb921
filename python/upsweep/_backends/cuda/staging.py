"""Execution context of numpy arrays with ``device="cuda"``: operands are copied to the device, results back.

The executors of this folder run in it as they do in the context of device arrays. All copies are on the device's
default stream. The copies of results back to the host wait for the work before them, at the end of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upsweep._arrays import Operand
from upsweep._backends import cpu
from upsweep._backends.cuda import library
from upsweep._backends.cuda.context import ExecutionContext
from upsweep._backends.cuda.descriptor import ArrayDescriptor
from upsweep._backends.cuda.memory import DeviceMemory
from upsweep._core.layout import new_array


class StagingContext(ExecutionContext):
    """The device copies of one call's numpy arrays; the arrays that it returns are numpy arrays."""

    def __init__(self, device: int) -> None:
        library.check_device(device)
        self.device, self.stream, self.casts = device, 0, False
        self._memory = DeviceMemory(device)
        self._outputs: list[tuple[ArrayDescriptor, Operand]] = []

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is None:
                for source, target in self._outputs:
                    self.memory.to_host(source, target)
        finally:
            self.close()

    @property
    def memory_limit(self) -> int | None:
        return cpu.memory_limit()

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        return self.memory.allocate(n_bytes)

    empty = temporary = staticmethod(new_array)

    def to_device(self, array: Operand) -> ArrayDescriptor:
        return self.memory.to_device(array)

    number = input = to_device

    def factor(self, gamma: Operand | None) -> ArrayDescriptor | None:
        return self.optional_input(gamma)

    def output(self, array: Operand) -> ArrayDescriptor:
        """Allocate device memory for a result, which is copied to `array` at the end of the call."""
        target = self.memory.empty(array.shape, array.dtype)
        self._outputs.append((target, array))
        return target

    def element(self, array: Operand, index: tuple[int, ...]) -> Any:
        return array[index]


def open_context(arrays: Mapping[str, Operand | None], device: int | None) -> ExecutionContext:
    """Return the context of device arrays, or with `device` that of numpy arrays."""
    return ExecutionContext(arrays) if device is None else StagingContext(device)
