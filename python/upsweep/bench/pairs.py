"""Reductions over pairs: pairs a second and core, beside numpy, scikit-learn and KeOps where they are installed.

Each answer is compared with float64 numpy on some rows before it is timed. The figure of a dense reduction is in
1e9 pairs a second and thread; of a block-sparse one it is the share of the dense reduction's rate that is reached
on the pairs that are kept; of a call, microseconds. KeOps runs the same expressions, as it is installed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep.bench.harness import Call, Samples, measure, microseconds
from upsweep.bench.peers import optional
from upsweep.bench.report import Row

__all__ = ["Case", "cases", "measure_case", "run"]

Array = NDArray[Any]

_POINTS, _QUICK_POINTS = 20_000, 4_000
_CHECKED = 200  # rows that numpy calculates in float64
_K = 10
_RATE, _SHARE = "Gpairs/s/core", "of dense"


@dataclass(frozen=True)
class Case:
    """One reduction to time; `block`: block-sparse, in blocks of so many rows."""

    name: str
    reduction: str  # "sum", "logsumexp" or "argKmin"
    dtype: str
    dim: int
    bar: float | None
    block: int | None = None
    half_in_one: bool = False  # one block holds half the points


def cases() -> list[Case]:
    """Every case and its bar."""
    return [
        Case("Gaussian sum, D=3", "sum", "float32", 3, 3.0),
        Case("logsumexp, D=3", "logsumexp", "float32", 3, 1.5),
        Case("argKmin(10), D=3", "argKmin", "float32", 3, 1.0),
        Case("Gaussian sum, D=3", "sum", "float64", 3, 0.9),
        Case("Gaussian sum, D=64", "sum", "float32", 64, 0.5),
        Case("Gaussian sum, D=3, blocks of 200", "sum", "float32", 3, 0.85, 200),
        Case("Gaussian sum, D=3, blocks of 32", "sum", "float32", 3, 0.5, 32),
        Case("Gaussian sum, D=3, half in one block", "sum", "float32", 3, 0.85, 200, True),
    ]


def _points(case: Case, n: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    x, y = (rng.random((n, case.dim)).astype(case.dtype) for _ in range(2))
    return x, y, rng.random((n, 1)).astype(case.dtype)


def _ranges(case: Case, n: int) -> upsweep.BlockRanges | None:
    """A tenth of the blocks of columns for each block of rows, some of them neighbours."""
    if case.block is None:
        return None
    edges = np.arange(0, n, case.block)
    if case.half_in_one:
        edges = np.concatenate([[0], edges[edges >= n // 2]])
    blocks = np.stack([edges, np.append(edges[1:], n)], axis=1)
    keep = np.random.default_rng(1).random((len(blocks), len(blocks))) < 0.1
    np.fill_diagonal(keep, True)
    return upsweep.BlockRanges.from_matrix(blocks, blocks, keep, (n, n))


def _call(library: Any, case: Case, x: Array, y: Array, b: Array, **keywords: Any) -> Call:
    """The reduction, in the names that KeOps and upsweep share."""
    i, j = library.LazyTensor(x[:, None, :]), library.LazyTensor(y[None, :, :])
    squares = i.sqdist(j)
    if case.reduction == "argKmin":
        return partial(squares.argKmin, _K, axis=1, **keywords)
    if case.reduction == "logsumexp":
        return partial((-squares).logsumexp, axis=1, **keywords)
    return partial(((-squares).exp() * library.LazyTensor(b[None, :, :])).sum, axis=1, **keywords)


def _by_numpy(case: Case, x: Array, y: Array, b: Array) -> Array:
    """The same as one writes it in numpy, with a matrix of distances, in the dtype of the points."""
    squares = (x * x).sum(axis=1)[:, None] + (y * y).sum(axis=1) - 2 * (x @ y.T)
    if case.reduction == "argKmin":
        nearest: Array = np.argpartition(squares, _K, axis=1)[:, :_K]
        return nearest
    kernel = np.exp(-squares)
    result: Array = np.log(kernel.sum(axis=1, keepdims=True)) if case.reduction == "logsumexp" else kernel @ b
    return result


def _is_right(case: Case, answer: Array, x: Array, y: Array, b: Array, mask: Array | None) -> bool:
    """Whether the first rows are numpy's in float64."""
    squares = ((x[:_CHECKED, None].astype(np.float64) - y) ** 2).sum(axis=2)
    if case.reduction == "argKmin":
        chosen = np.take_along_axis(squares, np.asarray(answer[:_CHECKED], np.int64), axis=1)
        return bool(np.allclose(np.sort(chosen, axis=1), np.sort(squares, axis=1)[:, :_K], rtol=1e-4, atol=1e-5))
    terms = np.exp(-squares) * (1.0 if mask is None else mask[:_CHECKED])
    expected = terms @ (np.ones_like(b) if case.reduction == "logsumexp" else b)
    expected = np.log(expected) if case.reduction == "logsumexp" else expected
    return bool(np.allclose(answer[:_CHECKED], expected, rtol=1e-5 if case.dtype == "float32" else 1e-12))


def measure_case(case: Case, n: int, n_threads: int | None, rounds: int, peers: bool = True) -> Row:
    """Time a case of n x n pairs, beside its peers or the dense reduction, once its answer is right."""
    x, y, b = _points(case, n)
    ranges = _ranges(case, n)
    threads = upsweep.get_num_threads() if n_threads is None else n_threads
    ours = _call(upsweep, case, x, y, b, n_threads=n_threads, **({} if ranges is None else {"ranges": ranges}))
    mask = None if ranges is None else ranges.to_mask()
    if not _is_right(case, np.asarray(ours()), x, y, b, mask):
        unit = _RATE if ranges is None else _SHARE
        return Row(case.name, case.dtype, None, None, unit, case.bar, note="the answer is wrong: not timed")
    methods: dict[str, Call] = {"upsweep": ours}
    if ranges is not None:
        methods["dense"] = _call(upsweep, case, x, y, b, n_threads=n_threads)
    elif peers:
        methods |= _peers(case, x, y, b)
    samples = measure(methods, rounds, burst=2)
    seconds = samples.best("upsweep")
    if ranges is None:
        figure, unit = n * n / seconds / threads / 1e9, _RATE
    else:
        figure, unit = samples.best("dense") * (ranges.n_pairs / n**2) / seconds, _SHARE
    return Row(
        case.name, case.dtype, seconds, figure, unit, case.bar, note=_note(samples, n),
        busy=None if samples.quiet else samples.others,
    )  # fmt: skip


def _peers(case: Case, x: Array, y: Array, b: Array) -> dict[str, Call]:
    """The others that are installed and answer rightly."""
    found: dict[str, Call] = {"numpy": partial(_by_numpy, case, x[: len(x) // 10], y, b)}
    neighbours = optional("sklearn.neighbors")
    if case.reduction == "argKmin" and neighbours is not None:
        search = neighbours.NearestNeighbors(n_neighbors=_K, algorithm="brute").fit(y)
        found["scikit-learn"] = partial(search.kneighbors, x, return_distance=False)
    keops = optional("pykeops.numpy")
    if keops is not None:
        found["KeOps"] = _call(keops, case, x, y, b, backend="CPU")
    right = {name: call for name, call in found.items() if name != "KeOps"}
    if "KeOps" in found and _is_right(case, np.asarray(found["KeOps"]()), x, y, b, None):
        right["KeOps"] = found["KeOps"]
    return right


def _note(samples: Samples, n: int) -> str:
    """The others' rates, in 1e9 pairs a second on all their threads; numpy has a tenth of the rows."""
    parts = []
    for name in ("numpy", "scikit-learn", "KeOps"):
        if name in samples.seconds:
            pairs = n * n // 10 if name == "numpy" else n * n
            parts.append(f"{name} {pairs / samples.best(name) / 1e9:.3g}")
    if parts:
        return ", ".join(parts) + " Gpairs/s"
    return f"dense {samples.best('dense') * 1e3:.1f} ms" if "dense" in samples.seconds else ""


# ---- calls -----------------------------------------------------------------------------------------------------

_new = itertools.count(1)


def _small_calls(quick: bool) -> Iterator[Row]:
    """What a call costs that has next to nothing to do, and the first one of a formula."""
    x, y = np.random.default_rng(0).random((2, 5, 3)).astype(np.float32)
    reduce = upsweep.Genred("Exp(-SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)"], axis=1)

    def by_expression() -> object:
        squares = (upsweep.LazyTensor(x[:, None, :]) - upsweep.LazyTensor(y[None, :, :])) ** 2
        return (-squares.sum(2)).exp().sum(axis=1)

    def by_new_formula() -> object:
        formula = f"Exp(-SqDist(x, y) * IntCst({next(_new)}) / IntCst(7919))"
        return upsweep.Genred(formula, ["x = Vi(3)", "y = Vj(3)"], axis=1)(x, y)

    methods: dict[str, tuple[Call, int, float]] = {
        "Genred of 5 x 5 pairs, again": (partial(reduce, x, y), 200 if quick else 1000, 25.0),
        "LazyTensor of 5 x 5 pairs, again": (by_expression, 200 if quick else 1000, 80.0),
        "a new formula, compiled": (by_new_formula, 3, 100_000.0),
    }
    for name, (call, loops, bar) in methods.items():
        call()
        found = microseconds({name: call}, 3 if quick else 7, loops)[name]
        yield Row(name, "float32", found / 1e6, found, "us", bar)


def run(
    only: str = "",
    quick: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the cases whose name and dtype contain `only`."""
    chosen = [case for case in cases() if only in f"{case.name}, {case.dtype}"]
    rows = []
    for case in chosen:
        rows.append(measure_case(case, _QUICK_POINTS if quick else _POINTS, n_threads, rounds=2 if quick else 4))
        if progress is not None:
            progress(len(rows), len(chosen))
    return rows + [row for row in _small_calls(quick) if only in f"{row.case}, {row.dtype}"]
