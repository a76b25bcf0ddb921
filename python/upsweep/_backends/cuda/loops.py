"""Executor of loop nests on a CUDA device: arrays on the device in place, host arrays by staging copies.

`te.cuda_function` and `_torch.loops` call it; `_backends.cuda_loops` imports it on first use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays import Array, DeviceView
from upsweep._backends.cuda import loops_launch, staging
from upsweep._backends.cuda.context import Call, described, user_array
from upsweep._backends.cuda.scan_launch import DeviceArray

__all__ = ["compile_ahead", "prepare", "run_nest", "start"]

compile_ahead, start = loops_launch.compile_ahead, loops_launch.start


def prepare(
    program: Any, arrays: Sequence[Array], sizes: dict[str, int], names: Sequence[str], device: int
) -> loops_launch.PreparedCall:
    """The part of a call that arrays of the same shapes and strides share."""
    return loops_launch.prepare(program, [described(array) for array in arrays], sizes, names, device)


def run_nest(
    program: Any,
    named: Sequence[tuple[str, Array | None]],
    shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
    is_output: Sequence[bool],
    sizes: dict[str, int],
    names: Sequence[str],
    device: int,
) -> list[Any]:
    """Run a nest, and return its missing results as new arrays of the inputs' library.

    Parameters
    ----------
    named : sequence of (str, array or None)
        The arrays by name; None: a result that is missing.
    shapes, is_output : sequences
        The shape and dtype of each, and whether it is a result.
    sizes : dict
        The values of symbolic sizes; `names` are their keys in the program's order.
    device : int
        The device that host arrays are copied to.
    """
    arrays = [array for _, array in named]
    if any(isinstance(array, DeviceView) for array in arrays):
        with contextlib.closing(Call({name: array for name, array in named if array is not None})) as call:
            filled = [call.empty(*shapes[n]) if array is None else array for n, array in enumerate(arrays)]
            loops_launch.run(program, [described(each) for each in filled], sizes, names, **call.where)
            return [user_array(each) for each, array in zip(filled, arrays) if array is None]
    results = [np.empty(shape, dtype) for (shape, dtype), array in zip(shapes, arrays) if array is None]
    fresh = iter(results)
    host_arrays = [next(fresh) if array is None else array for array in arrays]
    with contextlib.closing(staging.Memory(device)) as memory:
        sent: list[DeviceArray] = []
        for array, is_result in zip(host_arrays, is_output):
            native = array.dtype.newbyteorder("=")
            sent.append(memory.empty(array.shape, native) if is_result else memory.send(array))
        loops_launch.run(
            program, sent, sizes, names, device=device, stream=memory.stream, allocate=memory.allocate
        )
        for array, of_device, is_result in zip(host_arrays, sent, is_output):
            if is_result and array.size:
                memory.fetch(of_device, array)
    return results
