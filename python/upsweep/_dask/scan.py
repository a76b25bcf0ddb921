"""Scans of dask arrays: the carries of blocks, the states before them, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.base import tokenize

from upsweep import _arrays, _backends, aggregates
from upsweep._core import scan as scan_problem
from upsweep._dask import graphs
from upsweep._dask.columns import Columns, check_method, final_chunks, final_state

__all__ = ["scan"]

_CARRIES: dict[str, Callable[..., aggregates.Carry]] = {
    "cumulative_sum": aggregates.cumulative_sum_carry,
    "discounted_cumsum": aggregates.discounted_cumsum_carry,
    "linear_recurrence": aggregates.linear_recurrence_carry,
}


@dataclass(frozen=True)
class _Work:
    """What tasks do: the scan, and its keywords for every block."""

    scan: Callable[..., Any]
    of_a_carry: dict[str, Any]
    keywords: dict[str, Any]

    def combine(self, first: aggregates.Carry, second: aggregates.Carry) -> aggregates.Carry:
        return aggregates.combine(first, second)

    def apply(self, carry: aggregates.Carry, state: Any) -> Any:
        return carry.apply(state)

    def carry(self, reset: Any, *arrays: Any) -> aggregates.Carry:
        return _CARRIES[self.scan.__name__](*arrays, reset=reset, **self.of_a_carry)

    def result(self, state: Any, reset: Any, *arrays: Any) -> Any:
        return self.scan(*arrays, initial=state, reset=reset, **self.keywords)

    def state(self, carry: aggregates.Carry, state: Any, reset: Any, *arrays: Any) -> Any:
        """The state after a block; where products leave the range of numbers, from its steps in order."""
        after = carry.apply(state)
        if state is None:
            return after
        with _arrays.on_device_of(after):
            regular = np.isfinite(carry.multiplier) & np.isfinite(after)
            if regular.all():
                return after
            return np.where(regular, after, self.step(state, reset, *arrays)[1])

    def step(self, state: Any, reset: Any, *arrays: Any) -> tuple[Any, Any]:
        """Result and state of a block, without a carry."""
        both: tuple[Any, Any] = self.scan(
            *arrays, initial=state, reset=reset, return_final=True, **self.keywords
        )  # fmt: skip
        return both

    def first_result(self, state: Any, reset: Any, *arrays: Any) -> Any:
        """That of the block which the state before it is put before."""
        return self.scan(*arrays, initial=state, reset=reset, include_initial=True, **self.keywords)


def scan(
    function: Callable[..., Any],
    arrays: dict[str, Any],
    *,
    axis: int,
    reverse: bool,
    initial: Any,
    reset: Any,
    return_final: bool,
    method: str | None,
    n_threads: int | None,
    include_initial: bool = False,
    **keywords: Any,
) -> Any:
    """The scan of arguments of which one is a dask array, as a dask array, with the final state as another one."""
    method = check_method(method)
    _backends.check_threads(n_threads)
    operands = graphs.as_operands({**arrays, "reset": reset, "initial": initial})
    dtypes, shape, at = _check(function, operands, list(arrays), axis, keywords)
    reverse = bool(reverse)
    blocks = _cut(operands, shape, at)

    threads = 1 if n_threads is None else n_threads  # the workers' own threads are as many as there are cores
    common = {"axis": at - len(shape), "reverse": reverse, "n_threads": threads}
    of_a_carry = {key: value for key, value in keywords.items() if key == "dtype"}
    work = _Work(function, {**common, **of_a_carry}, {**common, **keywords})
    token = tokenize(function.__name__, operands, common, keywords, method, include_initial)
    columns = Columns(
        work, blocks, f"{function.__name__}-{token}", at, reverse, ["reset", *arrays], blocks.readers("initial"),
        include_initial,
    )  # fmt: skip
    columns.add_all(method)

    like = blocks.like
    states, results = f"{function.__name__}-states-{token}", columns.name
    graph = graphs.with_layer(states, columns.states, blocks.arrays)
    chunks = list(blocks.chunks)
    if include_initial:
        longer = list(chunks[at])
        longer[-1 if reverse else 0] += 1
        chunks[at] = tuple(longer)
    top = graphs.on_top(graph, results, columns.results, states)
    result = graphs.new_array(top, results, tuple(chunks), dtypes[0], like)
    if not return_final:
        return result
    final = f"{function.__name__}-final-{token}"
    top = graphs.on_top(graph, final, columns.finals(final, final_state, like._meta, dtypes[1]), states)
    return result, graphs.new_array(top, final, final_chunks(blocks, at), dtypes[1], like)


def _check(
    function: Callable[..., Any],
    operands: dict[str, Any],
    names: list[str],
    axis: object,
    keywords: dict[str, Any],
) -> tuple[tuple[np.dtype[Any], np.dtype[Any]], tuple[int, ...], int]:
    """Dtypes of result and state, the result's shape and axis; raises what the scan of the whole would."""
    ones = [graphs.stand_in(operands[name]) for name in names]
    # Numbers promote otherwise than arrays do: they are handed on as they came.
    nothing = [np.zeros((0,) * one.ndim, one.dtype) if getattr(one, "ndim", 0) else one for one in ones]
    y, final = function(*nothing, return_final=True, **keywords)
    named = {name: _arrays.as_array(one, name) for name, one in zip(names, ones)}
    leading = "tokens" if "tokens" in names else "x"
    x = named.pop(leading)
    other, factor = named.popitem() if named else (None, None)
    reset, initial = graphs.stand_in(operands["reset"]), graphs.stand_in(operands["initial"])
    checked = scan_problem.normalise(leading, x, other, factor, y.dtype, axis=axis, reset=reset, initial=initial)
    return (y.dtype, final.dtype), checked.shape, checked.axis


def _cut(operands: dict[str, Any], shape: tuple[int, ...], axis: int) -> graphs.Blocks:
    others = tuple(i for i in range(len(shape)) if i != axis)
    whole = tuple(range(len(shape)))
    axes = {}
    for name, operand in operands.items():
        of_shape = others if name == "initial" else whole
        axes[name] = of_shape[len(of_shape) - getattr(operand, "ndim", 0) :]
    return graphs.cut_alike(operands, axes)
