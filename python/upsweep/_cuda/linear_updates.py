"""Updates that are recurrences of gates and tokens, handed to the kernels of `linear_recurrence`."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

import numpy as np

from upsweep import _cuda
from upsweep._cuda import DeviceArray, abi, driver
from upsweep._expr.linear_update import LinearUpdate, find_linear
from upsweep._expr.recurrence import Recurrence

__all__ = ["run"]

# Of inputs, and of results: the library keeps short ones' states in float32, an update's are as short as they are.
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_WIDE = ("float32", "float64")


@functools.lru_cache(512)
def _linear(recurrence: Recurrence) -> LinearUpdate | None:
    return find_linear(recurrence)


def run(
    recurrence: Recurrence,
    inputs: Sequence[DeviceArray | None],
    outputs: Sequence[DeviceArray],
    states: Sequence[DeviceArray | float],
    finals: Sequence[DeviceArray | None],
    columns: tuple[int, ...],
    *,
    device: int,
    stream: int,
    allocate: Callable[[int], tuple[int, object]],
) -> bool:
    """Start the scan, if it is such a recurrence and the library is there; else False."""
    linear = _linear(recurrence)
    if linear is None or _cuda.find() is None or len(columns) + 1 > abi.MAX_DIMS:
        return False
    (given,), (final,) = states, finals
    x, gates = inputs[linear.tokens], None if linear.gates is None else inputs[linear.gates]
    assert x is not None
    arrays = [array for array in (x, gates, given) if isinstance(array, DeviceArray)]
    results = [array for array in (*outputs, final) if array is not None]
    if not results or any(a.dtype not in _FLOATS for a in arrays) or any(a.dtype not in _WIDE for a in results):
        return False
    before, keep = given if isinstance(given, DeviceArray) else None, None
    # Nothing times a finite number is nothing; times a gate it may be NaN.
    is_nothing = given == 0 and gates is None and abs(linear.factor) < np.inf
    if not isinstance(given, DeviceArray) and not is_nothing:
        pointer, keep = allocate(8)
        driver.device(device).write_words(pointer, struct.unpack("2I", struct.pack("d", given)), stream)
        before = DeviceArray(pointer, columns, (0,) * len(columns), "float64")
    problem = _cuda.problem(
        x, gates, linear.factor if gates is None else None, before, None, outputs[0] if outputs else None, final,
        axis=0, reverse=False, exclusive=False, device=device, stream=stream,
    )  # fmt: skip
    _cuda.run_scan(problem, allocate)
    del keep
    return True
