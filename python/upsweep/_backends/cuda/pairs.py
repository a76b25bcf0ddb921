"""Reductions over pairs of arrays that are on a device. Imported by the first call that needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from upsweep._arrays import Operand as Array
from upsweep._backends.cuda import pairs_launch
from upsweep._backends.cuda.context import Call, described, user_array

__all__ = ["run_pairs"]


def run_pairs(
    reduction: Any, arrays: Sequence[Array], n_i: int, n_j: int, batch: tuple[int, ...], ranges: Any
) -> tuple[Any, ...]:
    """The results, arrays of the library that the arrays are of, on their device; nothing waits."""
    with contextlib.closing(Call({str(place): array for place, array in enumerate(arrays)})) as call:
        results = [
            call.empty(shape, dtype)
            for shape, dtype in pairs_launch.results_of(reduction, n_i, n_j, batch, arrays[0].dtype)
        ]
        pairs_launch.run(
            reduction, [described(array) for array in arrays], [described(result) for result in results], n_i, n_j,
            batch, ranges, allocate=call.allocate, **call.on_stream,
        )  # fmt: skip
        return tuple(user_array(result) for result in results)
