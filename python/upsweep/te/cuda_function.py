"""Functions of arrays on a CUDA device, or of host arrays that are copied to it and back.

The checks of arguments are those of `Function`; `_backends.cuda.loops` compiles and launches the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep import _arrays, _backends
from upsweep._compiler.cuda.loops.program import Program, programs_of, text_of
from upsweep._compiler.cuda.loops.scan_form import scan_form
from upsweep._compiler.loops.sizes import Sizes
from upsweep._utils.lru_cache import LRUCache
from upsweep.te.function import Arguments, Array, Function


class CudaFunction(Function):
    """A schedule compiled for a CUDA device.

    Called with arrays of torch, cupy or any library with ``__cuda_array_interface__`` it runs on their device, on
    the current stream, and does not synchronise. Arrays of numpy are copied to the device and the results back.
    """

    is_on_device = True

    def _prepare_nest(self) -> None:
        lowered = self._lowered
        assert lowered.device is not None
        self.device = lowered.device  # to which arrays of numpy are copied
        self.prepared: LRUCache[Any, Any] = LRUCache(64)  # calls on tensors, without their addresses
        free = set(map(id, lowered.free_axes))
        self.program, self.wide = programs_of(lowered.body, lowered.buffers, lowered.sizes, free, self.name)
        form = self.form = scan_form(lowered.body, lowered.buffers, free)
        self.first: Program | None = None  # of the form: the first steps, which no step before them gives
        if form is not None and form.neutral is None:
            self.first = Program(form.starts, lowered.buffers, lowered.sizes, free, self.name)
        self.text = text_of(self.program, self.wide, form)

    def _compile(self) -> None:
        try:
            _backends.cuda_loops.compile_ahead(self.program, self.device)
        except (RuntimeError, ImportError) as error:
            raise RuntimeError(
                f'{self.name}: target "cuda" needs an NVIDIA GPU, its driver and a compiler: {error}'
            ) from error

    def run(self, arrays: Sequence[Any], n_threads: int | None) -> Any:
        """`__call__` on arrays of numpy, and on views of a device's memory."""
        if n_threads is not None:
            raise ValueError("n_threads: is about the CPU; a schedule says how many threads a device runs")
        arguments, sizes = self._check_arguments(arrays)
        passed = {id(parameter): array for parameter, array in arguments}
        shapes = [(tuple(e(sizes) for e in p.extents), p.dtype) for p in self._parameters]
        new = _backends.cuda_loops.run_nest(
            self._program(sizes), [(p.name, passed.get(id(p))) for p in self._parameters], shapes,
            [p.is_output for p in self._parameters], sizes, self._size_keys, self.device, self.form, self.first,
        )  # fmt: skip
        if not new:
            return None
        return new[0] if len(new) == 1 else tuple(new)

    def has_all_arrays(self, values: Sequence[Any]) -> bool:
        """Whether a call has all arrays, and the function takes no sizes as arguments."""
        return len(values) == len(self._args) == len(self._parameters)

    def prepare(self, views: Sequence[Array], device: int) -> Any:
        """The part that calls on a device with all arrays like these have in common."""
        arguments, sizes = self._check_arguments(views)
        arrays = [array for _, array in arguments]
        return _backends.cuda_loops.prepare(
            self._program(sizes), arrays, sizes, self._size_keys, device, self.form, self.first
        )

    def _program(self, sizes: Sizes) -> Program:
        return self.wide if self.wide is not None and self.program.is_wide(sizes) else self.program

    def _check_arrays(self, arguments: Arguments) -> None:
        """Raise where some arrays are on a device and others are not, or a result overlaps another array there."""
        on_device = [p for p, array in arguments if isinstance(array, _arrays.DeviceView)]
        if not on_device:
            return
        for parameter, array in arguments:
            if not isinstance(array, _arrays.DeviceView):
                raise TypeError(
                    f"{parameter.name}: is an array in the computer's memory, while {on_device[0].name} is on a "
                    "CUDA device; copy one of them explicitly"
                )
        for parameter, array in arguments:
            for other, each in arguments:
                if other is not parameter and parameter.is_output and np.may_share_memory(array, each):
                    raise ValueError(f"{parameter.name}: overlaps {other.name} in the device's memory")
