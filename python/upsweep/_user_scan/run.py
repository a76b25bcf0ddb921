"""A pass over a block of steps of a user's scan, where its arrays are: its outputs, and the states after it.

What goes on to another block are the states as one array (states, *columns) in float64, of the library that the
block is of, and on its device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep import _arrays
from upsweep._arrays import Array, DeviceView
from upsweep._compiler.recurrences.recurrence import Recurrence
from upsweep._user_scan.problem import as_real, broadcast, device_scans, in_place, moved, run_into, run_recurrence

__all__ = ["run_block", "stacked"]


def run_block(
    recurrence: Recurrence, dtype: np.dtype[Any], inputs: Sequence[Array], states: Sequence[Any], length: int,
    columns: tuple[int, ...], *, axis: int = 0, reverse: bool = False, results: Sequence[np.dtype[Any]] = (),
    n_threads: int | None = None,
) -> tuple[list[Any], Any]:  # fmt: skip
    """The outputs in their dtypes, `results`, and the states after the block.

    Parameters
    ----------
    recurrence, dtype
        What a step does, and what it is calculated in.
    inputs : sequence of arrays
        With time on the first axis, in the scan's order.
    states : sequence of numbers or arrays
        Before the first step, of the user's or of another block; each broadcasts to the columns.
    axis, reverse
        Where the outputs have time, and whether the scan runs against it.
    """
    named = {f"init[{n}]": as_real(state, f"init[{n}]") for n, state in enumerate(states)}
    before = [broadcast(state, columns, name) for name, state in named.items()]
    arrays = {**{f"xs[{n}]": x for n, x in enumerate(inputs)}, **named}
    if not any(isinstance(array, DeviceView) for array in arrays.values()):
        outputs, after = run_recurrence(
            recurrence, dtype, list(inputs), before, length, columns, axis, n_threads
        )  # fmt: skip
        ys = [in_place(out, axis, reverse, own) for out, own in zip(outputs, results, strict=True)]
        return ys, np.stack([np.asarray(each, np.float64) for each in after])
    # What only repeats a number is everywhere.
    placed = {name: array for name, array in arrays.items() if any(array.strides) or isinstance(array, DeviceView)}
    with contextlib.closing(device_scans(placed)) as scans:
        # Results are laid out as an input that repeats nothing, and written in their own dtype at once.
        like = next((moved(x, 0, axis) for x in inputs if isinstance(x, DeviceView) and 0 not in x.strides), None)
        whole = columns[:axis] + (length,) + columns[axis:]
        made = [scans.empty(whole, own, like) for own in results]
        last = scans.empty((len(before), *columns), np.dtype(np.float64))
        order = slice(None, None, -1 if reverse else None)
        targets = [moved(out, axis, 0)[order] for out in made]
        rows = [last[n] for n in range(len(before))]
        run_into(scans, recurrence, dtype, list(inputs), targets, before, rows, length, columns)
    return [out.origin.owner for out in made], last.origin.owner


def stacked(states: Any, columns: tuple[int, ...], like: Any) -> Any:
    """Numbers and arrays, each of which broadcasts to the columns, as states of the library that `like` is of."""
    shape = (len(states), *columns)
    if getattr(states, "shape", None) == shape:
        return states
    with _arrays.on_device_of(like):
        whole = np.empty_like(like, shape=shape, dtype=np.float64)
        for n, state in enumerate(states):
            whole[n] = state
    return whole
