"""The named scans of dask arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from upsweep import _arrays, _backends, aggregates
from upsweep._core import scan as scan_problem
from upsweep._dask.block_scan import BlockScan, check_method
from upsweep._dask.graph import Graph, Index, align_blocks, as_operands, placeholder


@dataclass(frozen=True)
class _Operations:
    """What the tasks compute: `scan` and its carry, with their keywords; see `block_scan.BlockOperations`."""

    scan: Callable[..., Any]
    carry_keywords: dict[str, Any]
    keywords: dict[str, Any]

    combine = staticmethod(aggregates.combine)
    apply = staticmethod(aggregates.Carry.apply)

    def carry(self, reset: Any, *arrays: Any) -> aggregates.Carry:
        return aggregates.CARRIES[self.scan.__name__](*arrays, reset=reset, **self.carry_keywords)

    def result(self, state: Any, *blocks: Any, **outputs: bool) -> Any:
        reset, *arrays = blocks
        return self.scan(*arrays, initial=state, reset=reset, **outputs, **self.keywords)

    def first_result(self, state: Any, *blocks: Any) -> Any:
        return self.result(state, *blocks, include_initial=True)

    def step(self, state: Any, *blocks: Any) -> Any:
        return self.result(state, *blocks, return_final=True)

    def state(self, carry: aggregates.Carry, state: Any, *blocks: Any) -> Any:
        """Apply the carry; where a product overflows, take the state after a scan of the block."""
        after = carry.apply(state)
        if state is None:
            return after
        with _arrays.on_device_of(after):
            is_finite = np.isfinite(carry.multiplier) & np.isfinite(after)
            if is_finite.all():
                return after
            return np.where(is_finite, after, self.step(state, *blocks)[1])


def scan(
    function: Callable[..., Any], *, axis: int, reverse: bool, initial: Any, reset: Any, return_final: bool,
    method: str | None, n_threads: int | None, include_initial: bool = False, window: int | None = None,
    **keywords: Any,
) -> Any:  # fmt: skip
    """Return the scan of arguments with a dask array among them, and the final state, as dask arrays."""
    if window is not None:
        raise NotImplementedError("window: of dask arrays, use dask.array.map_overlap with depth=window - 1")
    names = [name for name in keywords if name in ("x", "gamma", "gates", "tokens")]
    arrays = {name: keywords.pop(name) for name in names}
    method = check_method(method)
    _backends.check_threads(n_threads)
    operands = as_operands({**arrays, "reset": reset, "initial": initial})
    (result_dtype, state_dtype), shape, axis = _check(function, operands, list(arrays), axis, keywords)
    whole = tuple(range(len(shape)))
    state_axes = tuple(i for i in whole if i != axis)

    def axes_of(name: str, array: da.Array) -> Index:
        axes = state_axes if name == "initial" else whole
        return axes[len(axes) - array.ndim :]

    blocks = align_blocks(operands, axes_of)
    threads = 1 if n_threads is None else n_threads  # workers have as many threads of their own as there are cores
    common = {"axis": axis - len(shape), "reverse": bool(reverse), "n_threads": threads}
    carry_keywords = {key: value for key, value in keywords.items() if key == "dtype"}
    operations = _Operations(function, {**common, **carry_keywords}, {**common, **keywords})
    kind = function.__name__
    token = tokenize(kind, operands, common, keywords, method, include_initial)
    graph = Graph(f"{kind}-states-{token}", blocks)
    read_initial = blocks.reader("initial")
    tasks = BlockScan(
        operations, graph, f"{kind}-{token}", axis, bool(reverse), ["reset", *arrays],
        lambda index: read_initial(index)[0], include_initial,
    )  # fmt: skip
    tasks.add_tasks(method)

    chunks = [list(sizes) for sizes in blocks.chunks]
    chunks[axis][-1 if reverse else 0] += bool(include_initial)
    result = graph.array(tasks.name, tasks.results, tuple(map(tuple, chunks)), result_dtype)
    return (result, tasks.final_state(state_dtype)) if return_final else result


def _check(
    function: Callable[..., Any], operands: dict[str, Any], names: list[str], axis: object,
    keywords: dict[str, Any],
) -> tuple[tuple[np.dtype[Any], np.dtype[Any]], Index, int]:  # fmt: skip
    """Return the dtypes of result and state, the shape and the axis; raise what a scan of the whole would."""
    arrays = [placeholder(operands[name]) for name in names]
    # Numbers stay numbers, since they promote by other rules than arrays.
    empty = [np.zeros((0,) * one.ndim, one.dtype) if getattr(one, "ndim", 0) else one for one in arrays]
    y, final = function(*empty, return_final=True, **keywords)
    named = {name: _arrays.as_array(one, name) for name, one in zip(names, arrays)}
    leading = "tokens" if "tokens" in names else "x"
    x = named.pop(leading)
    other, factor = named.popitem() if named else (None, None)
    reset, initial = placeholder(operands["reset"]), placeholder(operands["initial"])
    checked = scan_problem.normalise(leading, x, other, factor, y.dtype, axis=axis, reset=reset, initial=initial)
    return (y.dtype, final.dtype), checked.shape, checked.axis
