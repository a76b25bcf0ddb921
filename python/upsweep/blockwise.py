"""Scans of data that arrive in blocks along the axis: arrays larger than memory, and streams without an end.

A scan keeps the state alone from block to block, in the precision of the computation, so that the number of blocks
adds nothing to the rounding error. With ``window=`` it also keeps the elements that later windows reach back to.
The public function is `scan_blocks`; a class for each kind of scan runs one block after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from upsweep import _arrays, aggregates, scans
from upsweep._core.checks import check_axis, check_window, check_writeable

__all__ = ["BlockScan", "scan_blocks"]

# The names of each scan's arrays.
_SCANS: dict[Callable[..., Any], tuple[str, ...]] = {
    scans.cumulative_sum: ("x",), scans.discounted_cumsum: ("x", "gamma"),
    scans.linear_recurrence: ("gates", "tokens"),
}  # fmt: skip
# What to call in place of functions that take no blocks.
_REMEDIES = {
    "ewm_mean": "; of blocks without NaN it is, with d = 1 - alpha, scan_blocks(scan, lambda s, x: "
    "((d * s[0] + x, d * s[1] + 1), (d * s[0] + x) / (d * s[1] + 1)), (0.0, 0.0), blocks)",
    "ewm_sum": "; of blocks without NaN it is discounted_cumsum with gamma = 1 - alpha",
    "lfilter": "; pass the state that it returns as zi of the next block",
}
_NOT_FOR_CARRIES = ("exclusive", "include_initial", "window", "out")


# From the arguments of a block, by name, and the state before it, to its result and the state after it.
Run = Callable[[dict[str, Any], Any], tuple[Any, Any]]


class BlockScan(Iterator[Any]):
    """An iterator of the results of a scan of blocks, in the order of the blocks; `scan_blocks` returns it.

    Attributes
    ----------
    state : array or None
        The state after the blocks so far, in the dtype of the computation (float64 for float32): None before the
        first block without `initial`. Another scan of blocks with this state as `initial` continues from it.

    Examples
    --------
    >>> import upsweep
    >>> sums = upsweep.scan_blocks(upsweep.cumulative_sum, iter([[1, 2], [3]]))
    >>> list(sums)
    [array([1, 3]), array([6])]
    >>> sums.state
    array(6)
    """

    def __init__(self, run: Run, blocks: Iterator[dict[str, Any]], initial: Any):
        self._run = run
        self._blocks = blocks
        self.state = initial

    def __next__(self) -> Any:
        result, self.state = self._run(next(self._blocks), self.state)
        return result


def scan_blocks(
    scan: Callable[..., Any], *arrays: Any, axis: int | None = None, reverse: bool = False, initial: Any = None,
    reset: Any = None, out: Any = None, **keywords: Any,
) -> BlockScan:  # fmt: skip
    """Scan data that arrive in blocks along `axis`, by default the last, in constant memory.

    Parameters
    ----------
    scan : function
        `cumulative_sum`, `discounted_cumsum`, `linear_recurrence` or `scan`.
    *arrays : iterable of array_like, array or number
        The arguments of `scan`: ``x``; ``x, gamma``; ``gates, tokens``. An argument that is neither an array nor
        a number is an iterable of blocks; a block is read when its result is asked for. Arrays and numbers are
        used for every block. `x` and `tokens` have to be iterables; gamma must not be one with ``window=``. For
        `scan` itself the arguments are ``update, init, xs``, where xs is an iterable of arrays, or of tuples of
        them.
    axis : int, optional
        The axis that the scan runs along, and along which the blocks follow each other. Default: the last one; the
        first one for `scan`.
    reverse : bool
        Run from the end to the start. The blocks are in the order of the scan: the last block of the array first.
    initial : array_like, optional
        The state before the first block.
    reset : iterable of array_like of bool, or array of bool, optional
        One for each block, or one array for all of them.
    out : iterable of arrays, optional
        Each result is written to one of these arrays, for example to slices of an ``np.memmap``.
    **keywords
        Other keywords of the scan: `exclusive`, `dtype`, `include_initial` (the first result is one step longer),
        `window`, `n_threads`, `device`. `scan` takes none but `reset`.

    Returns
    -------
    BlockScan
        An iterator of the results. Its `state` is the state after the blocks so far, as ``return_final=True``
        returns it for a whole array.

    Raises
    ------
    TypeError
        `scan` is none of these functions, or the wrong number of arrays; all of them are arrays; `return_final`.
    ValueError
        One iterable ends before another; the other axes of a block differ from those of the blocks before. Like
        the errors of `scan` itself, it is raised when the block is asked for; earlier results stay valid.

    See Also
    --------
    Carry, combine

    Notes
    -----
    The results are those of one scan of the whole array within its rounding, because the state is not rounded
    between blocks. For float32 and narrower dtypes each block is read twice, while it is in memory. With
    ``window=`` each block is copied together with the ``window - 1`` elements before it.

    Gradients of tensors flow across blocks. To stop them, start another scan of blocks from the detached state.

    Examples
    --------
    >>> import upsweep
    >>> blocks = iter([[1.0, 1.0], [1.0], [1.0, 1.0, 1.0]])
    >>> for y in upsweep.scan_blocks(upsweep.discounted_cumsum, blocks, 0.5):
    ...     print(y)
    [1.  1.5]
    [1.75]
    [1.875   1.9375  1.96875]

    A scan by a function:

    >>> smooth = lambda mean, x: 0.5 * mean + 0.5 * x
    >>> scan = upsweep.scan_blocks(upsweep.scan, smooth, 0.0, iter([[4.0, 8.0], [1.0]]))
    >>> list(scan), scan.state
    ([array([2., 5.]), array([3.])], array(3.))

    From file to file with ``np.memmap``; blocks of about 4 MiB are fast:

    >>> import numpy as np, os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> x = np.memmap(os.path.join(folder, "x"), np.float32, "w+", shape=2500)
    >>> x[:] = 1
    >>> y = np.memmap(os.path.join(folder, "y"), np.float32, "w+", shape=2500)
    >>> def cut(array, step=1000):
    ...     return (array[begin : begin + step] for begin in range(0, array.shape[0], step))
    >>> for _ in upsweep.scan_blocks(upsweep.cumulative_sum, cut(x), out=cut(y)):
    ...     pass
    >>> y[[0, 999, 1000, 2499]].tolist()
    [1.0, 1000.0, 1001.0, 2500.0]

    A zarr array is cut in the same way, at multiples of its chunks; results are assigned to slices of another::

        z = zarr.open("x.zarr")
        step = z.chunks[0]
        result = zarr.create_array("y.zarr", shape=z.shape, dtype=z.dtype, chunks=z.chunks)
        scan = upsweep.scan_blocks(upsweep.cumulative_sum, cut(z, step), axis=0)
        for begin, y in zip(range(0, z.shape[0], step), scan):
            result[begin : begin + step] = y
    """
    if type(scan).__module__ == "upsweep.user_scan":  # not imported here, so that `import upsweep` stays fast
        keywords = {**keywords, "initial": initial, "reset": reset, "out": out}
        keywords = {name: value for name, value in keywords.items() if value is not None}
        return _scan_by_update(arrays, 0 if axis is None else axis, reverse, keywords)
    axis = -1 if axis is None else axis
    try:
        names = _SCANS[scan]
    except (KeyError, TypeError):
        offered = ", ".join([*(function.__name__ for function in _SCANS), "scan"])
        got = getattr(scan, "__name__", _arrays.type_name(scan))
        raise TypeError(f"scan: expected one of {offered}, got {got}{_REMEDIES.get(got, '')}") from None
    if len(arrays) != len(names):
        raise TypeError(f"arrays: {scan.__name__} takes {len(names)} ({', '.join(names)}), got {len(arrays)}")
    if "return_final" in keywords:
        raise TypeError("return_final: the state after the blocks so far is the attribute `state` of the result")
    unknown = set(keywords).difference(scan.__kwdefaults__ or ())
    if unknown:
        raise TypeError(f"keywords: {scan.__name__} takes no {min(unknown)}")
    leading = "tokens" if "tokens" in names else "x"
    scanned = arrays[names.index(leading)]
    if _is_one(scanned):
        raise TypeError(
            f"{leading}: expected an iterable of blocks, got {_arrays.type_name(scanned)}; cut it along the axis, "
            "e.g. (a[i : i + n] for i in range(0, len(a), n))"
        )
    keywords.update(axis=axis, reverse=reverse)
    run: Run
    if keywords.get("window") is None:
        run = _Stateful(scan, names, keywords).run
    else:
        check_window(keywords["window"], initial, bool(keywords.get("exclusive")), False)
        if not _is_one(arrays[1]):
            raise TypeError("gamma: expected the same for all blocks with window=, got an iterable")
        run = _Windowed(keywords).run
    blocks = {**dict(zip(names, arrays)), "reset": reset, "out": out}
    return BlockScan(run, _blocks(blocks, leading), initial)


def _scan_by_update(arrays: tuple[Any, ...], axis: int, reverse: bool, keywords: dict[str, Any]) -> BlockScan:
    if len(arrays) != 3:
        raise TypeError(f"arrays: scan takes 3 (update, init, xs), got {len(arrays)}")
    reset = keywords.pop("reset", None)
    if keywords:
        remedy = "; init is the state before the first block" if "initial" in keywords else ""
        raise TypeError(f"keywords: scan takes no {min(keywords)} with blocks{remedy}")
    update, init, xs = arrays
    if _is_one(xs):
        raise TypeError(f"xs: expected an iterable of blocks, got {_arrays.type_name(xs)}; cut it along the axis")
    return BlockScan(_Updated(update, init, axis, reverse).run, _blocks({"xs": xs, "reset": reset}, "xs"), init)


def _is_one(argument: Any) -> bool:
    """Whether the argument is the same for all blocks: an array, a number or nothing."""
    return hasattr(argument, "shape") or not isinstance(argument, Iterable)


def _blocks(arguments: dict[str, Any], leading: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of the scan of each block, by name."""
    iterators = {name: iter(value) for name, value in arguments.items() if not _is_one(value)}
    fixed = {name: value for name, value in arguments.items() if name not in iterators}
    for n_blocks, block in enumerate(iterators[leading]):
        blocks = {**fixed, leading: block}
        for name, iterator in iterators.items():
            if name != leading:
                try:
                    blocks[name] = next(iterator)
                except StopIteration:
                    raise ValueError(f"{name}: ended after {n_blocks} blocks, while {leading} goes on") from None
        _arrays.refuse_labels(**blocks)
        yield blocks
    for name, iterator in iterators.items():
        if name != leading and next(iterator, iterators) is not iterators:
            raise ValueError(f"{name}: goes on after {leading} has ended")


@dataclass
class _Stateful:
    """Runs a scan of which each block depends on the blocks before it through the state alone."""

    scan: Callable[..., Any]
    names: tuple[str, ...]
    keywords: dict[str, Any]
    shape: tuple[int, ...] | None = None  # of the state; None before the first block

    def _carry(self, arrays: list[Any], reset: Any) -> aggregates.Carry:
        keywords = {name: value for name, value in self.keywords.items() if name not in _NOT_FOR_CARRIES}
        return aggregates.CARRIES[self.scan.__name__](*arrays, reset=reset, **keywords)

    def run(self, blocks: dict[str, Any], state: Any) -> tuple[Any, Any]:
        """Return the result of a block, and the state after it."""
        arrays, reset, out = [blocks[name] for name in self.names], blocks["reset"], blocks["out"]
        self._check_shape(arrays, reset)
        # The carry is computed first where `out` may overwrite the input.
        carry = self._carry(arrays, reset) if _is_narrow(out) else None
        result, final = self.scan(*arrays, initial=state, reset=reset, out=out, return_final=True, **self.keywords)
        self.shape = tuple(final.shape)
        self.keywords.pop("include_initial", None)  # only the first result begins with the state before it
        if _is_narrow(final):
            final = _unrounded(self._carry(arrays, reset) if carry is None else carry, state, final)
        return result, final

    def _check_shape(self, arrays: list[Any], reset: Any) -> None:
        """Raise for a block whose other axes differ from those before; the scan itself checks everything else."""
        if self.shape is None:
            return
        operands = [array for array in (*arrays, reset) if array is not None]
        try:
            shapes = [tuple(a.shape) if hasattr(a, "shape") else np.shape(a) for a in operands]
            shape = np.broadcast_shapes(*shapes)
            axis = check_axis(self.keywords["axis"], len(shape))
        except ValueError:
            return
        _check_follows(shape[:axis] + shape[axis + 1 :], self.shape)


def _check_follows(state: tuple[int, ...], expected: tuple[int, ...], name: str = "arrays") -> None:
    if state != expected:
        raise ValueError(f"{name}: a block with a state of shape {state} follows those of {expected}")


def _is_narrow(array: Any) -> bool:
    """Whether a state of this dtype has been rounded from float64 or complex128."""
    return str(getattr(array, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16", "float32", "complex64")


def _unrounded(carry: aggregates.Carry, state: Any, final: Any) -> Any:
    """Return the state after the block in full precision, or the rounded one where the product overflows."""
    after = carry.apply(state)
    if state is None:
        return after
    library = _arrays.namespace(after)
    return library.where(library.isfinite(carry.multiplier) & library.isfinite(after), after, final)


@dataclass
class _Windowed:
    """Runs windowed sums: each block is joined to the elements before it that its windows reach back to."""

    keywords: dict[str, Any]
    tail: tuple[Any, ...] | None = None

    def run(self, blocks: dict[str, Any], state: Any) -> tuple[Any, Any]:
        """Return the result of a block; there is no state."""
        x, reset = _arrays.broadcast_together(blocks["x"], blocks["reset"])
        axis, window = check_axis(self.keywords["axis"], x.ndim), self.keywords["window"]
        before = (slice(None),) * axis
        length = x.shape[axis]
        joined = [x, reset]
        if self.tail is not None:
            x_before, reset_before = self.tail
            shape, expected = (tuple(each.shape[:axis] + each.shape[axis + 1 :]) for each in (x, x_before))
            _check_follows(shape, expected)
            if reset_before is None and reset is not None:
                reset_before = _arrays.namespace(x).zeros_like(x_before, dtype=bool)
            elif reset is None and reset_before is not None:
                joined[1] = _arrays.namespace(x).zeros_like(x, dtype=bool)
            for i, (tail, block) in enumerate(zip((x_before, reset_before), joined)):
                if block is not None:
                    parts = (block, tail) if self.keywords["reverse"] else (tail, block)
                    joined[i] = _arrays.namespace(block).concat(parts, axis=axis)
        result = scans.discounted_cumsum(joined[0], blocks["gamma"], reset=joined[1], **self.keywords)
        n_tail = min(window - 1, joined[0].shape[axis])
        if self.keywords["reverse"]:
            own, tail_steps = slice(0, length), slice(0, n_tail)
        else:
            own, tail_steps = slice(result.shape[axis] - length, None), slice(result.shape[axis] - n_tail, None)
        self.tail = tuple(None if a is None else _arrays.copied(a[(*before, tail_steps)]) for a in joined)
        result = result[(*before, own)]
        out = blocks["out"]
        if out is None:
            return result, state
        if not hasattr(out, "shape"):
            raise TypeError(f"out: expected an array, got {_arrays.type_name(out)}")
        if hasattr(getattr(out, "flags", None), "writeable"):
            check_writeable(out)
        if (out.shape, out.dtype) != (result.shape, result.dtype):
            raise ValueError(f"out: expected {result.dtype} {result.shape}, got {out.dtype} {out.shape}")
        out[...] = result
        return out, state


@dataclass
class _Updated:
    """User-defined scans. No dtype of a result rounds the states between blocks."""

    update: Callable[[Any, Any], Any]
    init: Any
    axis: int
    reverse: bool
    first: Any = None  # the checked problem of the first block
    states: Any = ()

    def run(self, blocks: dict[str, Any], state: Any) -> tuple[Any, Any]:
        """Return the result of a block, and the state after it as users see it."""
        # Imported here, because `import upsweep` does not load the compiler of updates.
        from upsweep import user_scan
        from upsweep._compiler.recurrences.trace import arranged
        from upsweep._user_scan.problem import check, flatten, rounded, with_reset
        from upsweep._user_scan.run import run_block

        _arrays.refuse_labels(**blocks)
        update, xs = with_reset(self.update, blocks["xs"], blocks["reset"])
        if _arrays.any_torch(*flatten(self.init, "init")[0], *flatten(xs, "xs")[0]):
            keywords: dict[str, Any] = {"axis": self.axis, "reverse": self.reverse, "return_final": True}
            result: tuple[Any, Any] = user_scan.scan(update, state, xs, **keywords)
            return result
        problem = check(update, self.init, xs, self.axis, self.reverse, None)
        traced = problem.traced
        if self.first is None:
            self.first, self.states = problem, problem.states
        first = self.first.traced
        _check_follows(problem.spec.columns, self.first.spec.columns, "xs")
        dtypes = (*traced.output_dtypes, *traced.state_dtypes)
        if (traced.dtype, dtypes) != (first.dtype, (*first.output_dtypes, *first.state_dtypes)):
            names = ", ".join(map(str, dtypes))
            raise TypeError(f"xs: a block whose outputs and states are {names} follows those of other dtypes")
        ys, self.states = run_block(problem.spec, problem.inputs, self.states, traced.output_dtypes)
        last = [rounded(state[...], dtype) for state, dtype in zip(self.states, traced.state_dtypes)]
        return arranged(ys, traced.output_structure), arranged(last, problem.state_structure)
