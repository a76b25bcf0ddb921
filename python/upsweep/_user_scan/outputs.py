"""Where a call of `scan` writes when its user brings the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays import Array
from upsweep._core.scan import check_out, overlap
from upsweep._user_scan.problem import Problem, label

__all__ = ["as_targets", "in_scan_order"]


def as_targets(out: Any, problem: Problem) -> list[Array]:
    """The arrays of `out`, one for each output of the update, of the result's shape and dtype.

    Raises
    ------
    TypeError, ValueError
        It is not arranged as the outputs are; an array does not fit, or shares memory with another one, or with an
        input without being it.
    """
    structure, dtypes = problem.traced.output_structure, problem.traced.output_dtypes
    if structure is None:
        raise ValueError("out: the update has no output")
    if structure != -1 and (not isinstance(out, tuple) or len(out) != structure):
        raise TypeError(f"out: expected a tuple of {structure} arrays, as the outputs are, got {_described(out)}")
    given = [out] if structure == -1 else list(out)
    inputs: dict[str, Array | None] = {
        label("xs", problem.input_structure, n): x for n, x in enumerate(problem.given)
    }
    shape = problem.columns[: problem.axis] + (problem.length,) + problem.columns[problem.axis :]
    targets: list[Array] = []
    for place, (array, dtype) in enumerate(zip(given, dtypes)):
        name = label("out", structure, place)
        target = check_out(array, shape, dtype, inputs, tuple(inputs), called=name)
        for other, earlier in enumerate(targets):
            if overlap(target, earlier):
                raise ValueError(f"{name}: overlaps out[{other}] in memory")
        targets.append(target)
    return targets


def _described(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__qualname__


def in_scan_order(targets: Sequence[Array], problem: Problem) -> list[Array]:
    """Targets with time on the first axis, in the order of the steps."""
    first = [np.moveaxis(target, problem.axis, 0) if problem.axis else target for target in targets]
    return [target[::-1] if problem.reverse else target for target in first]
