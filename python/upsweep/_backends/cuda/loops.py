"""CUDA executor of loop nests: the functions that `te` builds for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays import DeviceView, Operand, user_array
from upsweep._backends.cuda import loops_launch
from upsweep._backends.cuda.descriptor import describe
from upsweep._backends.cuda.driver import PreparedCall
from upsweep._backends.cuda.loops_launch import compile_ahead
from upsweep._backends.cuda.staging import open_context

__all__ = ["compile_ahead", "prepare", "run_nest"]


def prepare(
    program: Any, arrays: Sequence[Operand], sizes: dict[str, int], names: Sequence[str], device: int
) -> PreparedCall:
    """Prepare calls on device arrays of these shapes and strides."""
    return loops_launch.prepare(program, [describe(array) for array in arrays], sizes, names, device)


def run_nest(
    program: Any, named: Sequence[tuple[str, Operand | None]],
    shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], is_output: Sequence[bool], sizes: dict[str, int],
    names: Sequence[str], device: int,
) -> list[Any]:  # fmt: skip
    """Run a nest and return the results that the caller did not pass, which are of the library of the inputs.

    Numpy arrays are copied to `device` and back.
    """
    on_device = any(isinstance(array, DeviceView) for _, array in named)
    with open_context(dict(named), None if on_device else device) as context:
        arrays = [context.empty(*shape) if array is None else array for (_, array), shape in zip(named, shapes)]
        descriptors = [
            context.output(array) if is_result else context.input(array)
            for array, is_result in zip(arrays, is_output)
        ]
        call = loops_launch.prepare(program, descriptors, sizes, names, context.device)
        call.start([array.pointer for array in descriptors], context.stream, context.allocate)
    return [user_array(array) for array, (_, operand) in zip(arrays, named) if operand is None]
