"""Functions that run on a CUDA device: checks of their arrays, which may lie there or in the computer's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._compiler.cuda.loops.program import Program, programs_of, text_of
from upsweep._compiler.loops.sizes import Sizes
from upsweep.te.function import Array, Function, Parameter

__all__ = ["DeviceFunction"]


class DeviceFunction(Function):
    """A schedule compiled for a CUDA device.

    Called with arrays of torch, cupy or whatever has ``__cuda_array_interface__`` it runs where they are, on the
    current stream, and does not wait. Arrays of numpy are copied there and back.
    """

    is_on_device = True

    def _prepare_nest(self) -> None:
        source = self._source
        assert source.device is not None
        self.device = source.device  # to which arrays of numpy are copied
        self.prepared: dict[Any, Any] = {}  # calls on tensors, by what these are but for where they lie
        free = set(map(id, source.free_axes))
        self.program, self.wide = programs_of(source.body, source.buffers, source.sizes, free, self.name)
        self.text = text_of(self.program, self.wide)

    def _compile(self) -> None:
        try:
            _backends.cuda_loops().compile_ahead(self.program, self.device)
        except (RuntimeError, ImportError) as error:
            raise RuntimeError(
                f'{self.name}: target "cuda" needs an NVIDIA GPU, its driver and a compiler: {error}'
            ) from error

    def run(self, arrays: Sequence[Any], n_threads: int | None) -> Any:
        """`__call__` of arrays of numpy, and of views of those on a device."""
        if n_threads is not None:
            raise ValueError("n_threads: is about the CPU; a schedule says how many threads a device runs")
        taken, sizes = self._taken(arrays)
        given = {id(parameter): array for parameter, array in taken}
        shapes = [(tuple(e(sizes) for e in p.extents), p.dtype) for p in self._parameters]
        new = _backends.cuda_loops().run_nest(
            self._program(sizes), [(p.name, given.get(id(p))) for p in self._parameters], shapes,
            [p.is_output for p in self._parameters], sizes, self._size_keys, self.device,
        )  # fmt: skip
        if not new:
            return None
        return new[0] if len(new) == 1 else tuple(new)

    def fills_with_arrays_alone(self, values: Sequence[Any]) -> bool:
        """Whether a call has all arrays, and the function takes no sizes by themselves."""
        return len(values) == len(self._args) == len(self._parameters)

    @property
    def result_places(self) -> list[int]:
        """Which of its arrays are results."""
        return [place for place, parameter in enumerate(self._parameters) if parameter.is_output]

    def prepare(self, views: Sequence[Array], device: int) -> Any:
        """What calls that fill results on a device have in common, where all arrays are like these."""
        taken, sizes = self._taken(views)
        given = {id(parameter): array for parameter, array in taken}
        arrays = [given[id(parameter)] for parameter in self._parameters]
        return _backends.cuda_loops().prepare(self._program(sizes), arrays, sizes, self._size_keys, device)

    def _program(self, sizes: Sizes) -> Program:
        is_wide = self.wide is not None and self.program.is_wide(sizes)
        return self.wide if is_wide and self.wide is not None else self.program

    def _take(self, parameter: Parameter, value: Any) -> Array:
        """An argument as an array, or as a view of one on a device."""
        if parameter.is_output and not isinstance(value, np.ndarray) and not _arrays.any_on_device(value):
            raise TypeError(f"{parameter.name}: expected an array to fill, got {_arrays.type_name(value)}")
        array = _arrays.as_operand(value, parameter.name)
        parameter.check_shape(array)
        return array

    def _bind(self, taken: list[tuple[Parameter, Array]], sizes: Sizes) -> None:
        _check_together(taken)
        super()._bind(taken, sizes)


def _check_together(taken: Sequence[tuple[Parameter, Array]]) -> None:
    """Raise where some arrays lie on a device and others do not, or a result overlaps another array there."""
    there = [p for p, array in taken if isinstance(array, _arrays.DeviceView)]
    if not there:
        return
    for parameter, array in taken:
        if not isinstance(array, _arrays.DeviceView):
            raise TypeError(
                f"{parameter.name}: is an array in the computer's memory, while {there[0].name} is on a CUDA "
                "device; copy one of them explicitly"
            )
    for parameter, array in taken:
        for other, each in taken:
            if other is not parameter and parameter.is_output and np.may_share_memory(array, each):
                raise ValueError(f"{parameter.name}: overlaps {other.name} in the device's memory")
