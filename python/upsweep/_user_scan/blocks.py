"""Scans by an update of blocks that come one after the other: what they keep of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from upsweep import _arrays
from upsweep._user_scan.problem import Problem, arranged, check, flatten, rounded
from upsweep._user_scan.run import run_block
from upsweep.user_scan import scan

__all__ = ["Updated"]


class Updated:
    """What runs block after block: the update, and the states between blocks, which no dtype of results rounds."""

    def __init__(self, update: Callable[[Any, Any], Any], init: Any, axis: int, reverse: bool):
        self.update, self.init, self.axis, self.reverse = update, init, axis, reverse
        self.first: Problem | None = None
        self.states: Any = ()

    def run(self, blocks: dict[str, Any], state: Any) -> tuple[Any, Any]:
        """The result of a block, and the state after it as users see it."""
        xs = blocks["xs"]
        if _arrays.any_torch(*flatten(self.init, "init")[0], *flatten(xs, "xs")[0]):
            both: tuple[Any, Any] = scan(
                self.update, state, xs, axis=self.axis, reverse=self.reverse, return_final=True
            )
            return both
        problem = check(self.update, self.init, xs, self.axis, self.reverse, None)
        traced = problem.traced
        if self.first is None:
            self.first, self.states = problem, problem.states
        _check_alike(self.first, problem)
        ys, self.states = run_block(
            traced.recurrence, traced.dtype, problem.inputs, self.states, problem.length, problem.columns,
            axis=problem.axis, reverse=problem.reverse, results=traced.output_dtypes,
        )  # fmt: skip
        last = [rounded(self.states[n, ...], dtype) for n, dtype in enumerate(traced.state_dtypes)]
        return arranged(ys, traced.output_structure), arranged(last, problem.state_structure)


def _check_alike(first: Problem, problem: Problem) -> None:
    if problem.columns != first.columns:
        raise ValueError(f"xs: a block with a state of shape {problem.columns} follows those of {first.columns}")
    was, now = (each.traced for each in (first, problem))
    if (was.dtype, was.state_dtypes, was.output_dtypes) != (now.dtype, now.state_dtypes, now.output_dtypes):
        found = ", ".join(str(dtype) for dtype in (*now.output_dtypes, *now.state_dtypes))
        raise TypeError(f"xs: a block whose outputs and states are {found} follows those of other dtypes")
