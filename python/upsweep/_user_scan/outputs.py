"""Checks the argument ``out=`` of `scan`: the arrays that the outputs are written to."""

from __future__ import annotations

from typing import Any

from upsweep._arrays import Array
from upsweep._core.layout import overlap
from upsweep._core.scan import check_out
from upsweep._user_scan.problem import Problem, label

__all__ = ["as_targets"]


def as_targets(out: Any, problem: Problem) -> list[Array]:
    """The arrays of `out`, one for each output of the update, of the result's shape and dtype.

    Raises
    ------
    TypeError, ValueError
        `out` is not arranged as the outputs are; or an array does not fit, or shares memory with another one, or
        with an input without being that input.
    """
    structure, dtypes = problem.traced.output_structure, problem.traced.output_dtypes
    if structure is None:
        raise ValueError("out: the update has no output")
    if structure != -1 and (not isinstance(out, tuple) or len(out) != structure):
        got = f"a tuple of {len(out)}" if isinstance(out, tuple) else type(out).__qualname__
        raise TypeError(f"out: expected a tuple of {structure} arrays, as the outputs are, got {got}")
    inputs: dict[str, Array | None] = {
        label("xs", problem.input_structure, n): x for n, x in enumerate(problem.user_inputs)
    }
    targets: list[Array] = []
    for place, (array, dtype) in enumerate(zip([out] if structure == -1 else out, dtypes)):
        name = label("out", structure, place)
        target = check_out(array, problem.spec.shape, dtype, inputs, tuple(inputs), called=name)
        for other, earlier in enumerate(targets):
            if overlap(target, earlier):
                raise ValueError(f"{name}: overlaps out[{other}] in memory")
        targets.append(target)
    return targets
