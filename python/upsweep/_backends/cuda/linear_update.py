"""Updates that are recurrences of gates and tokens, handed to the kernels of `linear_recurrence`."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from upsweep._backends.cuda import abi, driver, scan_launch
from upsweep._backends.cuda.scan_launch import DeviceArray
from upsweep._compiler.recurrences.linear_update import LinearUpdate, find_linear
from upsweep._compiler.recurrences.recurrence import Recurrence

__all__ = ["Prepared", "prepare"]

# Of inputs, and of results: the library keeps short ones' states in float32, an update's are as short as they are.
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_WIDE = ("float32", "float64")


@functools.lru_cache(512)
def _linear(recurrence: Recurrence) -> LinearUpdate | None:
    return find_linear(recurrence)


class Prepared:
    """Such a scan, ready to start on any addresses."""

    def __init__(
        self, linear: LinearUpdate, template: abi.ScanProblem, places: dict[str, int], state: int
    ) -> None:
        self._linear, self._template, self._places, self._state = linear, template, places, state

    def start(
        self, operands: Sequence[Any], stream: int, allocate: Callable[[int], tuple[int, object]]
    ) -> None:  # fmt: skip
        """Start it; `operands` as those of `user_scans.Plan`."""
        problem, keep = abi.ScanProblem.from_buffer_copy(self._template), None
        problem.stream = stream
        for name, place in self._places.items():
            getattr(problem, name).data = operands[place]
        given = operands[self._state]
        if "initial" not in self._places and not self._is_nothing(given):
            pointer, keep = allocate(8)
            words = struct.unpack("2I", struct.pack("d", given))
            driver.device(problem.device).write_words(pointer, words, stream)
            problem.initial.data, problem.initial.dtype = pointer, abi.DTYPES["float64"]
        scan_launch.run_scan(problem, allocate)
        del keep

    def _is_nothing(self, number: float) -> bool:
        """Whether a state can be left out: 0 times a finite number is 0, times a gate it may be NaN."""
        return number == 0 and self._linear.gates is None and abs(self._linear.factor) < np.inf


def prepare(
    recurrence: Recurrence,
    inputs: Sequence[DeviceArray | None],
    outputs: Sequence[DeviceArray],
    states: Sequence[DeviceArray | float],
    finals: Sequence[DeviceArray | None],
    columns: tuple[int, ...],
    device: int,
) -> Prepared | None:
    """The scan, if it is such a recurrence and the library is there; else None."""
    linear = _linear(recurrence)
    if linear is None or scan_launch.find() is None or len(columns) + 1 > abi.MAX_DIMS:
        return None
    (given,), (final,) = states, finals
    x, gates = inputs[linear.tokens], None if linear.gates is None else inputs[linear.gates]
    assert x is not None
    arrays = [array for array in (x, gates, given) if isinstance(array, DeviceArray)]
    results = [array for array in (*outputs, final) if array is not None]
    if not results or any(a.dtype not in _FLOATS for a in arrays) or any(a.dtype not in _WIDE for a in results):
        return None
    before = given if isinstance(given, DeviceArray) else None
    problem = scan_launch.problem(
        x, gates, linear.factor if gates is None else None, before, None, outputs[0] if outputs else None, final,
        axis=0, reverse=False, exclusive=False, device=device, stream=0,
    )  # fmt: skip
    n, n_out = len(inputs), len(outputs)
    places = {"x": linear.tokens}
    if linear.gates is not None:
        places["gates"] = linear.gates
    if before is not None:
        places["initial"] = n + n_out
    if outputs:
        places["out"] = n
    if final is not None:
        places["final_state"] = n + n_out + 1
    return Prepared(linear, problem, places, n + n_out)
