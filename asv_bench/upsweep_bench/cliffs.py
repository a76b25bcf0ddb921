"""Cliffs: each operation over layouts, dtypes, options and data, relative to its plain neighbour, per element.

The value of a row is the speed of the case over that of its neighbour, which has the same operation and dtype,
and ordinary numbers in contiguous lines; a case that varies the data has a neighbour of its own layout. A case may
be 3 times slower than its neighbour, or twice if only the data differ. Some lines of each result are compared with
the reference before anything is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import upsweep
from numpy.typing import NDArray
from upsweep import reference, te
from upsweep.bench.report import Row

from upsweep_bench import case as base
from upsweep_bench import threshold_table

__all__ = ["OPERATIONS", "Arrays", "Case", "Problem", "cases", "print_rows", "worst"]

Array = NDArray[Any]

_LAYOUT, _DATA = 1 / 3, 1 / 2  # the least speed over the neighbour's
_NARROW = None  # lines or rows of fewer elements than a vector: each costs a step of latency, or a call
_N = 1_000_000


class Problem(NamedTuple):
    """A call, and what is checked of its result: `examine` returns a part of it and what this has to equal."""

    call: Callable[[], Any]
    examine: Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Case(base.Case):
    """A variation of an operation; `build` allocates. A plain case has no neighbour."""

    operation: str
    variation: str
    dtype: str
    n_elements: int
    build: Callable[[], Problem]
    neighbour: Case | None = None
    threshold: float | None = None
    metric: str = "of neighbour"
    peers: base.PeerThresholds = ()
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.operation}, {self.variation}"

    def function(self, arrays: Any) -> Callable[..., Any]:
        return lambda problem: problem.call()

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self)

    def versus(self, arrays: Any) -> tuple[base.Arrays, Callable[..., Any]] | None:
        return None if self.neighbour is None else (self.neighbour.arrays(), self.function(arrays))

    @property
    def versus_label(self) -> str:
        return "" if self.neighbour is None else self.neighbour.variation

    @property
    def versus_scale(self) -> float:
        return 1.0 if self.neighbour is None else self.n_elements / self.neighbour.n_elements


class Arrays(base.Arrays):
    """The inputs of a case."""

    def __init__(self, case: Case) -> None:
        self.problem = case.build()
        self.inputs = [(self.problem,)]
        self.epsilon = 2e-2 if case.dtype == "float16" else 1e-3
        dtype = np.dtype(case.dtype)
        self.smallest = np.finfo(dtype).smallest_normal if dtype.kind in "fc" else 1

    def error(self, answer: Any) -> float:
        """The largest error over the largest number; inf where NaNs, infinities or shapes differ."""
        actual, expected = map(np.asarray, self.problem.examine(answer))
        if actual.shape != expected.shape or not np.array_equal(np.isnan(actual), np.isnan(expected)):
            return math.inf
        wide = np.result_type(expected, "f8")
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(actual == expected, 0, actual.astype(wide) - expected))
        size = np.abs(expected, where=np.isfinite(expected), out=np.zeros(expected.shape)).max(initial=0)
        return float(np.nanmax(difference, initial=0) / max(size, self.smallest))

    def allowed(self) -> float:
        return self.epsilon


def cases(quick: bool = False, device: str = "cpu") -> list[base.Case]:
    """Every case of the CPU; `quick` leaves out dtypes, and options and data along axis 0."""
    return [] if device != "cpu" else [*_scans(quick), *_counts(), *_pairs(quick), *_te_sums(quick)]


def worst(rows: Sequence[Row]) -> list[Row]:
    """The slowest row of layouts, options and dtypes, and that of data, where there are any."""
    kinds = ([row for row in rows if row.threshold == threshold and row.value] for threshold in (_LAYOUT, _DATA))
    return [min(kind, key=lambda row: row.value or 0.0) for kind in kinds if kind]


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows from the fastest to the slowest, and which is the slowest of each kind."""
    threshold_table.print_table(sorted(rows, key=lambda row: row.value or math.inf, reverse=True))
    for row in worst(rows):
        print(f"{row.case}, {row.dtype}: {1 / (row.value or 1.0):.2f} times slower than its neighbour")


# ---- scans -----------------------------------------------------------------------------------------------------

_Change = Callable[[Array], None]
_LONG = 20_000  # steps; of a longer line the reference computes the first ones
_PLAIN = (1000, 1000), 1
_SHAPES = {
    "axis 0": ((1000, 1000), 0),
    "1,024 x 1,024 axis 1": ((1024, 1024), 1),
    "1,024 x 1,024 axis 0": ((1024, 1024), 0),
    "64 x 16,384 axis 0": ((64, 16384), 0),
    "256 x 4,096 axis 0": ((256, 4096), 0),
    "16,384 x 64 axis 0": ((16384, 64), 0),
    "8 x 1,024 x 128 axis 1": ((8, 1024, 128), 1),
    "1 line": ((1, _N), 1),
    "3 lines": ((3, 333_333), 1),
}
_NARROW_SHAPES = {
    "3 columns": ((333_333, 3), 0),
    "lines of 2": ((500_000, 2), 1),
    "lines of 17": ((60_000, 17), 1),
}


def _into(target: Array, x: Array) -> Array:
    target[...] = x
    return target


def _at_byte(x: Array, offset: int) -> Array:
    """A copy of `x` that begins `offset` bytes after a page does."""
    memory = np.empty(x.nbytes + 4096 + offset, np.uint8)
    begin = -memory.ctypes.data % 4096 + offset
    return _into(memory[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape), x)


_VIEWS: dict[str, Callable[[Array], Array]] = {
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "every second element": lambda x: _into(np.empty((x.shape[0], 2 * x.shape[1]), x.dtype)[:, ::2], x),
    "transposed": lambda x: np.asfortranarray(x),
    "rows 4,096 elements apart": lambda x: _into(np.empty((x.shape[0], 4096), x.dtype)[:, : x.shape[1]], x),
    "the same row": lambda x: np.broadcast_to(x[:1], x.shape),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "begins at an odd byte": lambda x: _at_byte(x, 1),
}
_OUTPUTS: dict[str, Callable[[Array, np.dtype[Any]], Array | None]] = {
    "output at a page": lambda x, dtype: _at_byte(np.zeros(x.shape, dtype), 0),
    "output one element into a page": lambda x, dtype: _at_byte(np.zeros(x.shape, dtype), dtype.itemsize),
    "output in place": lambda x, dtype: x,
    "transposed output": lambda x, dtype: np.zeros(x.shape, dtype, "F"),
}
_OPTIONS: dict[str, Callable[[Array, int], dict[str, Any]]] = {
    "reverse": lambda x, axis: {"reverse": True},
    "exclusive": lambda x, axis: {"exclusive": True},
    "initial": lambda x, axis: {"initial": np.ones(np.delete(x.shape, axis), x.dtype)},
    "few resets": lambda x, axis: {"reset": np.random.default_rng(1).random(x.shape) < 0.01},
}
_RESETS = {"resets everywhere": lambda x, axis: {"reset": np.ones(x.shape, bool)}}


def _at(steps: Any, value: float, n_lines: int | None = None) -> _Change:
    def change(lines: Array) -> None:
        lines[:n_lines, ..., steps] = value

    return change


def _every(value: Callable[[Any], Any]) -> _Change:
    return lambda lines: lines.fill(value(np.finfo(lines.dtype)))


def _alternate(lines: Array) -> None:
    lines[..., 3::100], lines[..., 50::100] = np.inf, -np.inf


_NUMBERS: dict[str, _Change] = {  # each changes the numbers of lines along the last axis
    "one NaN": _at(5, np.nan, 1),
    "a NaN in every line": _at(5, np.nan),
    "an infinity in every line": _at(5, np.inf),
    "a late infinity in every line": _at(-5, np.inf),
    "infinities of both signs": _alternate,
    "all NaN": _every(lambda f: np.nan),
    "all 0": _every(lambda f: 0),
    "subnormal": _every(lambda f: f.smallest_subnormal * 2),
    "overflow": _every(lambda f: f.max / 8),
}
_GATES: dict[str, _Change] = {  # and these the gates
    "gates 0": _every(lambda f: 0),
    "gates 1": _every(lambda f: 1),
    "gates -1": _every(lambda f: -1),
    "every second gate 0": _at(slice(None, None, 2), 0.0),
    "gates 1e4 for 500 steps": _at(slice(100, 600), 1e4),
    "tiny gates": _every(lambda f: f.smallest_normal),
    "a NaN among the gates": _at(5, np.nan),
    "an infinity among the gates": _at(5, np.inf),
}


class _Scan(NamedTuple):
    """A scan of `x` as upsweep and as the reference compute it; `gates` are None where it has none."""

    call: Callable[..., Any]
    dtypes: Sequence[str]
    options: bool = True  # whether it takes `exclusive`, `initial` and `reset`
    gated: bool = False
    reduces: bool = False  # whether the result has no axis of steps


def _decayed(s: Any, x: Any) -> Any:
    return 0.9 * s + x


def _squashed(s: Any, x: Any) -> Any:
    return np.tanh(s + x)


_FLOATS = ("float32", "float64", "float16")
_SCANS = {
    "cumulative_sum": _Scan(
        lambda module, x, gates, **keywords: module.cumulative_sum(x, **keywords),
        (*_FLOATS, "int64", "int32", "uint8", "bool", "complex64"),
    ),
    "discounted_cumsum": _Scan(
        lambda module, x, gates, **keywords: module.discounted_cumsum(x, 0.9, **keywords), (*_FLOATS, "complex64")
    ),
    "complex gamma": _Scan(
        lambda module, x, gates, **keywords: module.discounted_cumsum(x, 0.9j, **keywords), ("complex64",)
    ),
    "window of 50": _Scan(
        lambda module, x, gates, **keywords: module.discounted_cumsum(x, 0.9, window=50, **keywords),
        _FLOATS,
        False,
    ),
    "linear_recurrence": _Scan(
        lambda module, x, gates, **keywords: module.linear_recurrence(gates, x, **keywords), _FLOATS, gated=True
    ),
    "linear_recurrence_carry": _Scan(
        lambda module, x, gates, **keywords: module.linear_recurrence_carry(gates, x, **keywords).value,
        _FLOATS,
        False,
        gated=True,
        reduces=True,
    ),
    "scan(0.9 * s + x)": _Scan(
        lambda module, x, gates, **keywords: module.scan(_decayed, 0.0, x, **keywords), _FLOATS, False
    ),
    "scan(maximum)": _Scan(
        lambda module, x, gates, **keywords: module.scan(np.maximum, -np.inf, x, **keywords), ("float32",), False
    ),
    "scan(tanh(s + x))": _Scan(
        lambda module, x, gates, **keywords: module.scan(_squashed, 0.0, x, **keywords), ("float32",), False
    ),
}


def _scan(
    operation: str, dtype: str, layout: tuple[tuple[int, ...], int] = _PLAIN, *,
    view: str = "", output: str = "output at a page", numbers: str = "", gates: str = "",
    options: Callable[[Array, int], dict[str, Any]] = lambda x, axis: {},
) -> Problem:  # fmt: skip
    """The problem of a scan; the names are keys of the tables above."""
    shape, axis = layout
    rng, scan = np.random.default_rng(0), _SCANS[operation]
    if np.dtype(dtype).kind in "iub":
        x: Array = rng.integers(0, 2, shape).astype(dtype)
    else:
        x = rng.standard_normal(shape).astype(dtype)
    factors = rng.uniform(0.5, 1, shape).astype(dtype) if scan.gated else None
    for name, array, changes in ((numbers, x, _NUMBERS), (gates, factors, _GATES)):
        if name and array is not None:
            with np.errstate(over="ignore"):
                changes[name](np.moveaxis(array, axis, -1))
    if view:
        x, factors = _VIEWS[view](x), None if factors is None else _VIEWS[view](factors)
    keywords = {"axis": axis, **options(x, axis)}
    if not scan.reduces:
        dtype_out = scan.call(upsweep, x[:1, :1], None if factors is None else factors[:1, :1], axis=axis).dtype
        keywords["out"] = _OUTPUTS[output](x, dtype_out)
    in_lines = tuple(slice(None) if i == axis % x.ndim else slice(8) for i in range(x.ndim))
    if shape[axis] > _LONG:
        in_lines = tuple(slice(1000) if i == axis % x.ndim else s for i, s in enumerate(in_lines))
    of_lines = tuple(s for i, s in enumerate(in_lines) if i != axis % x.ndim)
    parts = {k: v[of_lines if k == "initial" else in_lines] if np.ndim(v) else v for k, v in keywords.items()}
    parts.pop("out", None)
    x_part, gates_part = (None if a is None else a[in_lines].copy() for a in (x, factors))

    def examine(result: Any) -> tuple[Any, Any]:
        expected = scan.call(reference, x_part, gates_part, **parts)
        return result[of_lines if scan.reduces else in_lines], expected

    return Problem(partial(scan.call, upsweep, x, factors, **keywords), examine)


def _scans(quick: bool) -> Iterator[Case]:
    for operation, scan in _SCANS.items():
        dtypes = [d for d in scan.dtypes if not quick or d in (scan.dtypes[0], "float16", "int32")]
        for dtype in dtypes:
            yield from _cases_of_scan(operation, scan, dtype, quick)


def _cases_of_scan(operation: str, scan: _Scan, dtype: str, quick: bool) -> Iterator[Case]:
    build = partial(_scan, operation, dtype)
    plain = Case(operation, "plain", dtype, _N, build)
    vary = partial(replace, plain, neighbour=plain, threshold=_LAYOUT)
    yield plain
    for shapes, threshold in ((_SHAPES, _LAYOUT), (_NARROW_SHAPES, _NARROW)):
        for name, layout in shapes.items():
            # The result of a reduction is compared for whole lines.
            if not (scan.reduces and layout[0][layout[1]] > _LONG):
                # tanh is not parallel in time: few lines cost the latency of each step.
                is_sequential = "tanh" in operation and layout[0][layout[1]] > _LONG
                yield vary(
                    variation=name, n_elements=math.prod(layout[0]), build=partial(build, layout),
                    threshold=_NARROW if is_sequential else threshold,
                )  # fmt: skip
    for name in _VIEWS:
        if np.dtype(dtype).itemsize > 1 or name != "other byte order":
            yield vary(variation=name, build=partial(build, view=name))
    outputs = [] if scan.reduces else [name for name in _OUTPUTS if name != "output in place" or dtype in _FLOATS]
    for name in outputs:
        yield vary(variation=name, build=partial(build, output=name))
    columns = vary(variation="axis 0", build=partial(build, _SHAPES["axis 0"]))
    options = {**_OPTIONS, **_RESETS} if scan.options else {"reverse": _OPTIONS["reverse"]}
    for layout, neighbour in ((_PLAIN, plain), (_SHAPES["axis 0"], columns))[: 1 if quick else 2]:
        prefix = "" if neighbour is plain else "axis 0, "
        for name, option in options.items():
            yield vary(
                variation=prefix + name, neighbour=neighbour, threshold=_DATA if name in _RESETS else _LAYOUT,
                build=partial(build, layout, options=option),
            )  # fmt: skip
        for kind, changes in (("numbers", _NUMBERS), ("gates", _GATES if scan.gated else {})):
            for name in changes if dtype in _FLOATS else ():
                # Sums of float64 that overflow are redone in the order of the plain loop (see discounted_cumsum).
                is_exempt = operation == "window of 50" and name == "overflow" and dtype == "float64"
                yield vary(
                    variation=prefix + name, neighbour=neighbour, threshold=None if is_exempt else _DATA,
                    build=partial(build, layout, **{kind: name}),
                )  # fmt: skip


# ---- counts ----------------------------------------------------------------------------------------------------

_KEYS: dict[str, Callable[[np.random.Generator], Array]] = {
    "sorted": lambda rng: np.sort(rng.integers(0, 1000, _N)),
    "all equal": lambda rng: np.full(_N, 7),
    "two alternate": lambda rng: np.arange(_N) % 2 * 999,
    "skewed": lambda rng: (1000 * rng.random(_N) ** 8).astype(np.int64),
    "runs of 100": lambda rng: np.repeat(rng.integers(0, 1000, _N // 100), 100),
}
_KEY_LAYOUTS: dict[str, Callable[[np.random.Generator], Array]] = {
    "every second element": lambda rng: np.repeat(rng.integers(0, 1000, _N), 2)[::2],
    "reversed": lambda rng: rng.integers(0, 1000, _N)[::-1],
    "other byte order": lambda rng: rng.integers(0, 1000, _N).astype(">i8"),
    "begins at an odd byte": lambda rng: _at_byte(rng.integers(0, 1000, _N), 1),
    "int32": lambda rng: rng.integers(0, 1000, _N, "i4"),
    "int8": lambda rng: rng.integers(0, 100, _N, "i1"),
    "uint64": lambda rng: rng.integers(0, 1000, _N, "u8"),
    "bool": lambda rng: rng.integers(0, 2, _N).astype(bool),
    "4 KiB apart": lambda rng: 512 * rng.integers(0, 100, _N),
    "1,024 bins": lambda rng: rng.integers(0, 1024, _N),
    "65,536 bins": lambda rng: rng.integers(0, 65_536, _N),
}


def _bincount(keys: Callable[[np.random.Generator], Array], weights: Any = None) -> Problem:
    rng = np.random.default_rng(0)
    x = keys(rng)
    w = None if weights is None else weights(rng)
    return Problem(partial(upsweep.bincount, x, w), lambda result: (result, np.bincount(x.astype("i8"), w)))


def _histogram(numbers: Callable[[np.random.Generator], Array], bins: Any = 1000, limits: Any = (0, 1)) -> Problem:
    x = numbers(np.random.default_rng(0))
    limits = limits if np.ndim(bins) == 0 else None
    wide = x.astype(x.dtype.newbyteorder("="))
    return Problem(
        lambda: upsweep.histogram(x, bins, limits)[0],
        lambda result: (result, np.histogram(wide[np.isfinite(wide)], bins, limits)[0]),
    )


def _with(value: float) -> Callable[[np.random.Generator], Array]:
    def numbers(rng: np.random.Generator) -> Array:
        x = rng.random(_N)
        x[::2] = value
        return x

    return numbers


_HISTOGRAMS: dict[str, tuple[float, partial[Problem]]] = {
    "float32": (_LAYOUT, partial(_histogram, lambda rng: rng.random(_N, "f4"))),
    "float16": (_LAYOUT, partial(_histogram, lambda rng: rng.random(_N, "f4").astype("f2"))),
    "other byte order": (_LAYOUT, partial(_histogram, lambda rng: rng.random(_N).astype(">f8"))),
    "every second element": (_LAYOUT, partial(_histogram, lambda rng: rng.random(2 * _N)[::2])),
    "100,000 bins": (_LAYOUT, partial(_histogram, lambda rng: rng.random(_N), 100_000)),
    "range of the data": (_LAYOUT, partial(_histogram, lambda rng: rng.random(_N), limits=None)),
    "1,000 irregular edges": (
        _LAYOUT,
        partial(_histogram, lambda rng: rng.random(_N), np.sort(np.random.default_rng(1).random(1001))),
    ),
    "sorted": (_DATA, partial(_histogram, lambda rng: np.sort(rng.random(_N)))),
    "all equal": (_DATA, partial(_histogram, lambda rng: np.full(_N, 0.3))),
    "half NaN": (_DATA, partial(_histogram, _with(np.nan))),
    "half infinite": (_DATA, partial(_histogram, _with(np.inf))),
    "half outside": (_DATA, partial(_histogram, _with(2.0))),
    "half subnormal": (_DATA, partial(_histogram, _with(1e-310))),
}


def _counts() -> Iterator[Case]:
    build = partial(_bincount, lambda rng: rng.integers(0, 1000, _N))
    uniform = partial(_weights, "float64")
    unweighted = Case("bincount", "plain", "int64", _N, partial(build, None))
    weighted = replace(unweighted, operation="weighted bincount", build=partial(build, uniform))
    for plain, weights in ((unweighted, None), (weighted, uniform)):
        yield plain
        for threshold, kinds in ((_LAYOUT, _KEY_LAYOUTS), (_DATA, _KEYS)):
            for name, keys in kinds.items():
                yield replace(
                    plain, variation=name, threshold=threshold, neighbour=plain,
                    build=partial(_bincount, keys, weights),
                )  # fmt: skip
    for name in ("float32", "int64", "float16"):
        yield replace(
            weighted, variation=f"{name} weights", threshold=_LAYOUT, neighbour=weighted,
            build=partial(build, partial(_weights, name)),
        )  # fmt: skip
    plain = Case("histogram", "plain", "float64", _N, partial(_histogram, lambda rng: rng.random(_N)))
    yield plain
    for name, (threshold, build) in _HISTOGRAMS.items():
        yield replace(plain, variation=name, threshold=threshold, neighbour=plain, build=build)


def _weights(dtype: str, rng: np.random.Generator) -> Array:
    return (10 * rng.random(_N)).astype(dtype)


# ---- pairs -----------------------------------------------------------------------------------------------------

_M = 2000  # rows and columns of pairs


def _from_far(y: Array, sign: int) -> Array:
    return y[np.argsort(sign * ((y - 0.5) ** 2).sum(1))]


_POINTS: dict[str, Callable[[Array], Array]] = {
    "one NaN": lambda y: _into(y, np.where(np.arange(len(y))[:, None] == 5, np.nan, y)),
    "all NaN": lambda y: np.full_like(y, np.nan),
    "one infinity": lambda y: _into(y, np.where(np.arange(len(y))[:, None] == 5, np.inf, y)),
    "all equal": lambda y: np.full_like(y, 0.5),
    "subnormal": lambda y: y * np.finfo(y.dtype).smallest_normal,
    "far away": lambda y: y + 100,
    "from far to near": partial(_from_far, sign=-1),
    "from near to far": partial(_from_far, sign=1),
}
_PAIR_LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "transposed": np.asfortranarray,
    "every second point": lambda y: np.repeat(y, 2, axis=0)[::2],
    "other byte order": lambda y: y.astype(y.dtype.newbyteorder()),
}
_REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "Gaussian sum": lambda d: (-d).exp().sum(axis=1),
    "logsumexp": lambda d: (-d).logsumexp(axis=1),
    "argmin": lambda d: d.argmin(axis=1),
    "argKmin(10)": lambda d: d.argKmin(10, axis=1),
    "argKmin(100)": lambda d: d.argKmin(100, axis=1),
}


def _pair_reduction(reduction: str, dtype: str, change: Callable[[Array], Array] = lambda y: y) -> Problem:
    rng = np.random.default_rng(0)
    x, y = (0.4 + 0.2 * rng.random((_M, 3)).astype(dtype) for _ in range(2))
    y = change(y)

    def call() -> Any:
        return _REDUCTIONS[reduction](upsweep.Vi(x).sqdist(upsweep.Vj(y)))

    def examine(result: Any) -> tuple[Any, Any]:
        with np.errstate(all="ignore"):
            d = ((x[:8, None].astype("f8") - y[None].astype("f8")) ** 2).sum(2)
            if reduction == "Gaussian sum":
                return result[:8, 0], np.exp(-d).sum(1)
            if reduction == "logsumexp":
                return result[:8, 0], np.logaddexp.reduce(-d, axis=1)
        nearest = np.argsort(d, 1)[:, : result.shape[1]] if result.shape[1] > 1 else d.argmin(1)[:, None]
        return np.take_along_axis(d, np.asarray(result[:8], "i8"), 1), np.take_along_axis(d, nearest, 1)

    return Problem(call, examine)


def _pairs(quick: bool) -> Iterator[Case]:
    for reduction in _REDUCTIONS:
        for dtype in ("float32",) if quick else ("float32", "float64"):
            build = partial(_pair_reduction, reduction, dtype)
            plain = Case(reduction, "plain", dtype, _M * _M, build)
            yield plain
            for threshold, changes in ((_LAYOUT, _PAIR_LAYOUTS), (_DATA, _POINTS)):
                for name, change in changes.items():
                    yield replace(
                        plain, variation=name, threshold=threshold, neighbour=plain, build=partial(build, change)
                    )


# ---- te --------------------------------------------------------------------------------------------------------


def _te_sum(axis: int, dtype: str) -> te.Function:
    """The sums of a matrix over an axis."""
    m, n = te.var("m"), te.var("n")
    x = te.placeholder((m, n), dtype=dtype, name="x")
    k = te.reduce_axis((0, (m, n)[axis]), "k")
    total = te.compute(((n, m)[axis],), lambda i: te.sum(x[(k, i) if axis == 0 else (i, k)], axis=k))
    return te.build(te.create_schedule(total.op), [x, total], "cpu")


def _te(dtype: str, axis: int, shape: tuple[int, int]) -> Problem:
    x = np.random.default_rng(0).random(shape).astype(dtype)
    out = np.empty(shape[1 - axis], dtype)
    function = _te_sum(axis, dtype)

    def call() -> Array:
        function(x, out)
        return out

    return Problem(call, lambda result: (result, x.sum(axis)))


def _te_sums(quick: bool) -> Iterator[Case]:
    for dtype in ("float32",) if quick else ("float32", "float64"):
        for axis in (1, 0):
            plain = Case(f"te sum over axis {axis}", "plain", dtype, _N, partial(_te, dtype, axis, (1000, 1000)))
            yield plain
            for m, n in ((1024, 1024), (256, 4096), (4096, 256), (64, 16384), (16384, 64)):
                yield replace(
                    plain, variation=f"{m:,} x {n:,}", n_elements=m * n, neighbour=plain, threshold=_LAYOUT,
                    build=partial(_te, dtype, axis, (m, n)),
                )  # fmt: skip


OPERATIONS = tuple(dict.fromkeys(case.operation for case in cases() if isinstance(case, Case)))
