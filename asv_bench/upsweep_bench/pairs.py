"""Reductions over pairs: cases, points, error.

The metric of a dense reduction is on the CPU the rate in 1e9 pairs a second and thread, on CUDA the milliseconds
of device time; of a block-sparse one on the CPU the share of the dense rate that is reached on the selected
pairs.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import upsweep

from upsweep_bench import case as base
from upsweep_bench.case import Direct, PeerThresholds, Source, as_float64, n_threads, ordered

__all__ = ["Arrays", "Case", "K", "cases", "lazy_reduction", "small_calls"]

K = 10  # neighbours of argKmin
POINTS, QUICK_POINTS = 20_000, 4_000
_RATE = "Gpairs/s/core"
_FEW = 10**9  # pairs; a device is done with fewer before the host has launched the next reduction
_ALLOWED = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}

_new = itertools.count(1)


@dataclass(frozen=True)
class Case(base.Case):
    """One reduction to time, of points in the unit cube.

    `block`: block-sparse in blocks of so many rows, `half_in_one` of which holds half of the points. `cells`:
    block-sparse of points in the plane, cut into so many cells along each side, of which pairs with near
    centres are selected, so that about a `share` of all pairs is. `falling`: the columns come from far to near.
    `precision`: that of products of vectors, instead of the default.
    """

    reduction: str  # "sum" of a Gaussian, "logsumexp", "argmin", or "argKmin" of `k` neighbours
    n_rows: int
    n_columns: int
    dim: int = 3
    threshold: float | None = None
    dtype: str = "float32"
    gradients: bool = False
    cells: int | None = None
    share: float = 1.0
    block: int | None = None
    half_in_one: bool = False
    k: int = K
    falling: bool = False
    precision: str | None = None
    peers: PeerThresholds = ()
    device: str = "cpu"

    @property
    def metric(self) -> str:  # type: ignore[override]  # follows from the other fields
        return "ms" if self.on_cuda else _RATE if self.block is None else "of dense"

    @property
    def name(self) -> str:
        reduction = {"sum": "Gaussian sum", "argKmin": f"argKmin({self.k})"}.get(self.reduction, self.reduction)
        words = f"{reduction}, D={self.dim}" + ", from far to near" * self.falling
        words += f", {self.precision}" if self.precision else ""
        if self.on_cuda:
            words += f", {self.n_rows:,} x {self.n_columns:,}"
            words += " and its gradient in x" * self.gradients
            return words + (f" in {self.cells} x {self.cells} cells" if self.cells is not None else "")
        return words + (
            ", half in one block"
            if self.half_in_one
            else ""
            if self.block is None
            else f", blocks of {self.block}"
        )

    @property
    def length(self) -> int:
        return self.n_columns

    @property
    def family(self) -> str:
        order = ", from far to near" * self.falling + (f", {self.precision}" if self.precision else "")
        return f"{self.reduction}, D={self.dim}, {self.dtype}" + f", K={self.k}" * (self.k != K) + order

    @property
    def scale(self) -> float:
        """The factor of squared distances in the exponential: with cells it decays within a few of them."""
        return 1.0 if not self.on_cuda else 1.5 / self.dim if self.cells is None else 200.0

    @property
    def unit(self) -> str:
        return _RATE if self.metric == _RATE else super().unit

    def value(self, seconds: float) -> float | None:
        if self.metric == _RATE:
            return self.n_rows * self.n_columns / seconds / n_threads() / 1e9
        return super().value(seconds)

    def note(self, seconds: float) -> str:
        return (
            f"{self.n_rows * self.n_columns * self.share / seconds / 1e12:.2f}e12 pairs/s" if self.on_cuda else ""
        )

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self, device)

    def function(self, arrays: Arrays) -> Callable[..., Any]:
        keywords: dict[str, Any] = {} if arrays.ranges is None else {"ranges": arrays.ranges}
        keywords |= {} if self.on_cuda else {"n_threads": n_threads()}
        keywords |= {"precision": self.precision} if self.precision else {}
        return lazy_reduction(self, upsweep, **keywords)

    def versus(self, arrays: Arrays) -> tuple[base.Arrays, Callable[..., Any]] | None:
        if self.metric != "of dense":
            return None
        return arrays, lazy_reduction(self, upsweep, n_threads=n_threads())

    @property
    def versus_label(self) -> str:
        return "dense"

    @property
    def versus_scale(self) -> float:
        blocks = _blocks(self)
        rows = np.diff(blocks[0], axis=1)[:, 0]
        return float((blocks[1] * rows[:, None] * rows).sum()) / self.n_rows**2


def lazy_reduction(case: Case, library: Any, **keywords: Any) -> Callable[..., Any]:
    """The reduction of rows, columns and summands in the names that KeOps and upsweep share."""

    def reduce(x: Any, y: Any, b: Any) -> Any:
        squares = library.Vi(x).sqdist(library.Vj(y))
        if case.reduction == "argKmin":
            return squares.argKmin(case.k, axis=1, **keywords)
        if case.reduction == "argmin":
            return squares.argmin(axis=1, **keywords)
        exponent = squares * -case.scale
        if case.reduction == "logsumexp":
            return exponent.logsumexp(axis=1, **keywords)
        return (exponent.exp() * library.Vj(b)).sum(axis=1, **keywords)

    return reduce


def _blocks(case: Case) -> tuple[Any, Any]:
    """Begins and ends of blocks of points, and which pairs of them are selected: a tenth, and the diagonal."""
    n, size = case.n_rows, case.block or case.n_rows
    edges = np.arange(0, n, size)
    if case.half_in_one:
        edges = np.concatenate([[0], edges[edges >= n // 2]])
    blocks = np.stack([edges, np.append(edges[1:], n)], axis=1)
    keep = np.random.default_rng(1).random((len(blocks), len(blocks))) < 0.1
    np.fill_diagonal(keep, True)
    return blocks, keep


class Arrays(base.Arrays):
    """Points and summands. One set is enough: they are read many times over, wherever they are."""

    def __init__(self, case: Case, device: str | None = None) -> None:
        self.case, source = case, Source(case, device)
        self.xp = source.xp
        # Launches of few pairs take the host as long as the device.
        self.launches_cost = case.on_cuda and case.n_rows * case.n_columns < _FEW
        x, b = source.uniform((case.n_rows, case.dim), "float64"), source.uniform((case.n_columns, 1), "float64")
        y = source.uniform((case.n_columns, case.dim), "float64") if case.cells is None else x
        if case.falling:  # rows near the origin have all columns in about this order
            x, y = 0.01 * x, y[(y**2).sum(1).argsort()[::-1]]
        self.ranges: upsweep.BlockRanges | None = None
        self.labels: Any = None  # the block of each point
        self.keep: Any = None  # which pairs of blocks are selected
        if case.block is not None:
            blocks, self.keep = _blocks(case)
            self.labels = np.repeat(np.arange(len(blocks)), np.diff(blocks, axis=1)[:, 0])
            self._set_ranges(blocks)
        elif case.cells is not None:
            x, self.labels = upsweep.cluster.sort_clusters(x, upsweep.cluster.grid_cluster(x, 1 / case.cells))
            blocks, centres, _ = upsweep.cluster.cluster_ranges_centroids(x, self.labels)
            radius = 1.03 * math.sqrt(case.share / math.pi)
            self.keep, y = self.xp.cdist(centres, centres) < radius, x
            self._set_ranges(blocks)
        self.x, self.y, self.b = (source.cast(array, case.dtype) for array in (x, y, b))
        if case.gradients:
            self.x.requires_grad_()
        self.inputs = [(self.x, self.y, self.b)]

    def _set_ranges(self, blocks: Any) -> None:
        sizes = self.case.n_rows, self.case.n_columns
        self.ranges = upsweep.BlockRanges.from_matrix(blocks, blocks, self.keep, sizes)

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        if not self.case.gradients:
            return super().call(function)

        def forward_and_backward(i: int) -> Any:
            total = function(*self.inputs[i])
            return self.xp.autograd.grad(total, self.x, self.xp.ones_like(total))[0]

        return forward_and_backward

    def error(self, answer: Any) -> float:
        """The largest error of some rows."""
        n, examined = len(answer), 16 if self.case.on_cuda else 200  # a peer may work on the first rows only
        errors = [self._row_error(answer, row) for row in range(0, n, max(1, n // examined))]
        return max(math.inf if math.isnan(error) else error for error in errors)

    def _row_error(self, answer: Any, row: int) -> float:
        """The error of one row, relative to the sum of the terms, or to distances."""
        case, xp = self.case, self.xp
        difference = as_float64(self.x[row]) - as_float64(self.y)
        squares = (difference**2).sum(1)
        if case.reduction in ("argmin", "argKmin"):
            k = 1 if case.reduction == "argmin" else case.k
            expected, actual = (self._sorted(values)[:k] for values in (squares, squares[answer[row]]))
            return float(abs(actual - expected).max() / max(float(expected.max()), 1e-30))
        exponent, actual = -case.scale * squares, as_float64(answer[row])
        if case.reduction == "logsumexp":
            return float(abs(actual - xp.log(xp.exp(exponent).sum())).max())
        terms = xp.exp(exponent) * as_float64(self.b[:, 0])
        if self.labels is not None:
            terms = terms * self.keep[int(self.labels[row])][self._as_indices(self.labels)]
        if case.gradients:
            parts = -2 * case.scale * difference * terms[:, None]
            return float((abs(actual - parts.sum(0)) / abs(parts).sum(0)).max())
        return float(abs(actual - terms.sum()).max() / terms.sum())

    def _sorted(self, values: Any) -> Any:
        return np.sort(values) if self.xp is np else values.sort().values

    def _as_indices(self, labels: Any) -> Any:
        return labels if self.xp is np else labels.long()

    def allowed(self) -> float:
        return _ALLOWED[self.case.dtype if self.case.precision is None else "float16"]


# ---- cases -----------------------------------------------------------------------------------------------------


def cases(quick: bool = False, device: str = "cpu") -> list[base.Case]:
    """Every case; `quick`: fewer points, on CUDA the cases of some milliseconds."""
    if device == "cuda":
        first_use = Direct("first use of a formula", "float32", "ms", 200.0, _first_use, device="cuda")
        # KeOps takes block-sparse ranges in a form of its own, and has no `precision`.
        keops = ordered(("KeOps",), None)
        every = (
            replace(case, peers=keops if case.cells is None and case.precision is None else ())
            for case in _cuda_cases(quick)
        )
        return [first_use, *(replace(case, device="cuda") for case in every)]
    n = QUICK_POINTS if quick else POINTS
    peers = ordered(("numpy, a tenth of the rows", "KeOps"), None)
    return [
        Case("sum", n, n, threshold=3.0, peers=peers),
        Case("logsumexp", n, n, threshold=1.5, peers=peers),
        Case("argKmin", n, n, threshold=1.0, peers=(*peers, ("scikit-learn", None))),
        Case("argKmin", n, n, threshold=1.0, falling=True, peers=peers),
        Case("argKmin", n, n, threshold=0.3, k=100, peers=peers),
        Case("argKmin", n, n, threshold=0.3, k=100, falling=True, peers=peers),
        Case("sum", n, n, threshold=0.9, dtype="float64", peers=peers),
        Case("sum", n, n, 64, 0.5, peers=peers),
        Case("sum", n, n, threshold=0.85, block=200),
        Case("sum", n, n, threshold=0.5, block=32),
        Case("sum", n, n, threshold=0.85, block=200, half_in_one=True),
        *small_calls(quick),
    ]


def _cuda_cases(quick: bool) -> Iterator[Case]:
    yield Case("sum", 10_000, 10_000, threshold=0.08)
    yield Case("sum", 100_000, 100_000, threshold=3.2)
    yield Case("sum", 1_000, 10_000_000, threshold=4.0)
    yield Case("logsumexp", 100_000, 100_000, threshold=4.0)
    yield Case("argKmin", 100_000, 100_000, threshold=6.0)
    yield Case("sum", 200_000, 200_000, dim=2, threshold=1.0, cells=24, share=0.064)
    if quick:
        return
    yield Case("sum", 1_000_000, 1_000_000, dim=2, threshold=14.0, cells=33, share=0.0445)
    yield Case("sum", 1_000_000, 1_000_000, threshold=275.0)
    yield Case("sum", 1_000_000, 1_000_000, threshold=650.0, gradients=True)
    yield Case("sum", 100_000, 100_000, dtype="float64")
    yield Case("sum", 100_000, 100_000, dtype="float16")
    yield Case("sum", 100_000, 100_000, dim=10)
    yield Case("sum", 100_000, 100_000, dim=50)
    yield Case("sum", 100_000, 100_000, dim=100, threshold=30.0)
    yield Case("sum", 100_000, 100_000, dim=500)
    yield Case("argKmin", 100_000, 100_000, dim=100, threshold=35.0)
    yield Case("sum", 100_000, 100_000, dim=64, threshold=7.0, precision="f16")
    yield Case("sum", 100_000, 100_000, dim=128, threshold=10.0, precision="f16")
    # The points of 32 images and the centres of one: the assignment of k-means.
    yield Case("argmin", 2_097_152, 1_024, dim=128, threshold=2.6, dtype="float16", precision="f16")


def _first_use(device: str = "cuda") -> tuple[float, float, str]:
    """The first call of a formula that no cache holds, once NVIDIA's compiler is loaded."""
    import torch

    points = torch.rand((50, 3), device=device)

    def call() -> float:
        begin = time.perf_counter()
        # A constant that neither this process nor an earlier one has used.
        constant = f"IntCst({time.time_ns() % 10**9 + next(_new)}) / IntCst(1000000007)"
        formula = f"Exp(-SqDist(x, y) * {constant})"
        result: Any = upsweep.Genred(formula, ["x = Vi(3)", "y = Vj(3)"])(points, points)
        result.cpu()
        return time.perf_counter() - begin

    call()
    seconds = statistics.median([call() for _ in range(3)])
    return seconds, seconds * 1e3, ""


def small_calls(quick: bool = False) -> Iterator[Direct]:
    """What a call with next to nothing to do costs, and the first call of a formula."""
    x, y = np.random.default_rng(0).random((2, 5, 3)).astype(np.float32)
    reduce = upsweep.Genred("Exp(-SqDist(x, y))", ["x = Vi(3)", "y = Vj(3)"], axis=1)

    def by_expression() -> object:
        squares = (upsweep.LazyTensor(x[:, None, :]) - upsweep.LazyTensor(y[None, :, :])) ** 2
        return (-squares.sum(2)).exp().sum(axis=1)

    def by_new_formula() -> object:
        formula = f"Exp(-SqDist(x, y) * IntCst({next(_new)}) / IntCst(7919))"
        return upsweep.Genred(formula, ["x = Vi(3)", "y = Vj(3)"], axis=1)(x, y)

    def run(call: Callable[[], object], loops: int) -> tuple[float, float, str]:
        call()
        times = base.microseconds({"upsweep": call}, 3 if quick else 7, loops)
        return times["upsweep"] / 1e6, times["upsweep"], ""

    loops = 200 if quick else 1000
    for name, call, n_calls, threshold in (
        ("Genred of 5 x 5 pairs, again", partial(reduce, x, y), loops, 25.0),
        ("LazyTensor of 5 x 5 pairs, again", by_expression, loops, 80.0),
        ("a new formula, compiled", by_new_formula, 3, 100_000.0),
    ):
        yield Direct(name, "float32", "us", threshold, partial(run, call, n_calls))
