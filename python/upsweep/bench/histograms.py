"""Histograms of twenty million numbers beside numpy, torch, boost-histogram and fast-histogram, and a copy.

The bars are for a hundred bins of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep.bench.harness import Call, copiers, measure
from upsweep.bench.peers import optional
from upsweep.bench.report import Row

__all__ = ["run"]

Array = NDArray[Any]

_TIMES_NUMPY = 10.0


@dataclass(frozen=True)
class _Case:
    """What is counted: numbers from 0 to 1, or to 1000 (200 for bytes) where they are integers."""

    dtype: str
    bins: int
    pattern: str = "uniform"
    edges: str = ""  # "given": not of equal width
    weights: str = ""
    ranged: bool = True  # else the range is looked for
    function: str = "histogram"
    bar: float | None = None

    @property
    def name(self) -> str:
        words = [self.function, f"{self.bins:,} bins", self.edges and "of given edges", self.pattern]
        words += [self.weights and f"{self.weights} weights", "" if self.ranged else "range of the data"]
        return ", ".join(word for word in words if word)


_CASES = (
    _Case("float32", 100, bar=_TIMES_NUMPY),
    _Case("float32", 100, ranged=False, bar=_TIMES_NUMPY),
    _Case("float32", 100, "sorted"),
    _Case("float32", 100, "all equal"),
    _Case("float32", 100, "on edges"),
    _Case("float32", 100, "skewed"),
    _Case("float64", 100),
    _Case("int32", 100),
    _Case("int64", 100),
    _Case("uint8", 100),
    _Case("float16", 100),
    _Case("float32", 10),
    _Case("float32", 10_000),
    _Case("float32", 100, edges="given"),
    _Case("float64", 10_000, edges="given"),
    _Case("float32", 100, weights="float32"),
    _Case("float64", 100, weights="float64"),
    _Case("float32", 100, function="histc"),
)


def _numbers(case: _Case, n: int) -> Array:
    unit = np.random.default_rng(0).random(n, np.float32)
    if case.pattern == "sorted":
        unit.sort()
    elif case.pattern == "all equal":
        unit[:] = 0.37
    elif case.pattern == "on edges":
        unit = np.round(unit, 2)
    elif case.pattern == "skewed":
        unit **= 8
    dtype = np.dtype(case.dtype)
    return (unit * _width(dtype)).astype(dtype)


def _width(dtype: np.dtype[Any]) -> int:
    return 1 if dtype.kind == "f" else 200 if dtype.itemsize == 1 else 1000


def _peers(
    case: _Case, x: Array, weights: Array | None, edges: Array, limits: Any, n_threads: int
) -> dict[str, Call]:
    """Those that take such arrays and are installed."""
    given: Any = edges if case.edges else case.bins
    found: dict[str, Call] = {
        "np": partial(np.histogram, x, given, None if case.edges else limits, weights=weights)
    }
    torch, boost, fast = (optional(name) for name in ("torch", "boost_histogram", "fast_histogram"))
    plain = limits is not None and not case.edges and weights is None
    if torch is not None and plain and x.dtype in (np.float32, np.float64):
        found["torch.histc"] = partial(torch.histc, torch.from_numpy(x), case.bins, *limits)
    if boost is not None and limits is not None and x.dtype != np.float16:
        axis = boost.axis.Variable(edges) if case.edges else boost.axis.Regular(case.bins, *limits)
        storage = boost.storage.Int64() if weights is None else boost.storage.Double()

        def fill() -> object:
            return boost.Histogram(axis, storage=storage).fill(x, weight=weights, threads=n_threads)

        found["boost-histogram"] = fill
    if fast is not None and plain:
        found["fast-histogram"] = partial(fast.histogram1d, x, case.bins, limits)
    return found


def _row(case: _Case, n: int, n_threads: int | None, rounds: int) -> Row:
    x = _numbers(case, n)
    width = _width(x.dtype)
    weights = np.random.default_rng(1).random(n, np.float32).astype(case.weights) if case.weights else None
    edges = width * np.linspace(0, 1, case.bins + 1) ** 2
    limits = (0, width) if case.ranged else None
    threads = upsweep.get_num_threads() if n_threads is None else n_threads
    ours: Call
    if case.function == "histc":
        ours = partial(upsweep.histc, x, case.bins, 0, width, n_threads=threads)
    else:
        given: Any = edges if case.edges else case.bins
        ours = partial(
            upsweep.histogram, x, given, None if case.edges else limits, weights=weights, n_threads=threads
        )
    peers = _peers(case, x, weights, edges, limits, threads)
    n_bytes = x.nbytes + (0 if weights is None else weights.nbytes)
    source = np.zeros(n_bytes, np.uint8)
    methods = {"upsweep": ours, **peers, **copiers(source, np.empty_like(source), threads)}
    samples = measure(methods, rounds, burst=2)
    best = samples.best("upsweep")
    notes = [f"{name} {samples.best(name) / best:.1f} x" for name in peers if name != "np"]
    notes.append(f"copy {samples.best(samples.fastest('copy')) / best:.2f} x")
    against = "torch.histc" if case.function == "histc" and "torch.histc" in peers else "np"
    return Row(
        f"{case.name}, {n:,}, against {against}",
        case.dtype,
        best,
        samples.best(against) / best,
        "x",
        case.bar,
        n_bytes=n_bytes,
        median=samples.median_ratio(against, "upsweep"),
        note=", ".join(notes),
        busy=None if samples.quiet else samples.others,
    )


def run(
    only: str = "",
    quick: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the cases whose row contains `only`: a peer's time over upsweep's; bytes are read once."""
    rows = []
    n = 1_000_000 if quick else 20_000_000
    for done, case in enumerate(_CASES):
        if only in f"{case.name}, {case.dtype}":
            rows.append(_row(case, n, n_threads, rounds=2))
        if progress is not None:
            progress(done + 1, len(_CASES))
    return rows
