"""Reductions over pairs of CUDA tensors: some rows checked against float64, then timed by events.

The figure is in milliseconds of device time, the smaller the better; a note has the pairs a second. A wrong answer
raises `WrongResult`: nothing is timed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch

import upsweep
from upsweep.bench import cuda_beside
from upsweep.bench import cuda_harness as harness
from upsweep.bench.cuda_beside import OURS, ContextLost, WrongResult, release_memory, title
from upsweep.bench.cuda_harness import Subject
from upsweep.bench.cuda_pair_cases import Case
from upsweep.bench.report import Row

__all__ = [
    "OURS",
    "ContextLost",
    "Tensors",
    "WrongResult",
    "check",
    "function_of",
    "measure_case",
    "release_memory",
    "title",
]

_ROUNDS = 15
_K = 10
_CHECKED = 16  # rows that float64 is asked for
_FEW = 10**9  # pairs, in whose time the host does not write and launch the next formula
_ALLOWED = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3}

_new = itertools.count(1)


class Tensors:
    """The points of a case, and its call on them."""

    def __init__(self, case: Case, count: int | None = None, device: str = "cuda") -> None:
        del count  # one set of arrays is enough: their numbers are read many times over, wherever they are
        self.case = case
        generator = torch.Generator(device).manual_seed(0)

        def numbers(n: int, dim: int) -> Any:
            return torch.rand((n, dim), generator=generator, device=device, dtype=torch.float64)

        x, b = numbers(case.n_rows, case.dim), numbers(case.n_columns, 1)
        self.ranges, self.labels = None, None
        if case.cells is None:
            y = numbers(case.n_columns, case.dim)
        else:
            x, self.labels = upsweep.cluster.sort_clusters(x, upsweep.cluster.grid_cluster(x, 1 / case.cells))
            y, self.ranges = x, self._near(x)
        self.x, self.y, self.b = (array.to(getattr(torch, case.dtype)) for array in (x, y, b))
        self.x.requires_grad_(case.gradients)

    def _near(self, points: Any) -> upsweep.BlockRanges:
        """The pairs of cells whose centres are near."""
        edges, centres, _ = upsweep.cluster.cluster_ranges_centroids(points, self.labels)
        radius = 1.03 * math.sqrt(self.case.share / math.pi)
        self.keep = torch.cdist(centres, centres) < radius
        return upsweep.BlockRanges.from_matrix(edges, edges, self.keep, (len(points), len(points)))

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        """The function as the call that is timed."""
        arrays = self.x, self.y, self.b
        if not self.case.gradients:
            return lambda _: function(*arrays)

        def forward_and_backward(_: int) -> Any:
            total = function(*arrays)
            return torch.autograd.grad(total, self.x, torch.ones_like(total))[0]

        return forward_and_backward

    def subject(self, function: Callable[..., Any]) -> Subject:
        few = self.case.n_rows * self.case.n_columns < _FEW
        return Subject(self.call(function), launches_cost=few)


def function_of(case: Case, ranges: Any = None) -> Callable[..., Any]:
    """The call of upsweep that is measured, of rows, columns and what is summed."""
    keywords: dict[str, Any] = {"axis": 1} if ranges is None else {"axis": 1, "ranges": ranges}

    def run(x: Any, y: Any, b: Any) -> Any:
        squares = upsweep.Vi(x).sqdist(upsweep.Vj(y))
        if case.reduction == "argKmin":
            return squares.argKmin(_K, **keywords)
        exponent = squares * -case.scale
        if case.reduction == "logsumexp":
            return exponent.logsumexp(**keywords)
        return (exponent.exp() * upsweep.Vj(b)).sum(**keywords)

    return run


def _row_error(case: Case, tensors: Tensors, answer: Any, row: int) -> float:
    """How far one row of the answer is from float64's: relative to the sum of what it sums, or to distances."""
    apart = tensors.x[row].detach().double() - tensors.y.double()
    squares = apart.square().sum(1)
    mine: Any = answer[row].double()
    if case.reduction == "argKmin":
        nearest = torch.topk(squares, min(_K, len(squares)), largest=False).values
        return float((squares[answer[row]] - nearest).abs().max() / nearest.max().clamp(min=1e-30))
    exponent = -case.scale * squares
    if case.reduction == "logsumexp":
        return float((mine - torch.logsumexp(exponent, 0)).abs().max())
    terms = exponent.exp() * tensors.b[:, 0].double()
    if tensors.labels is not None:
        kept: Any = tensors.keep[tensors.labels[row].long()][tensors.labels.long()]
        terms = torch.where(kept, terms, torch.zeros_like(terms))
    if case.gradients:
        parts = -2 * case.scale * apart * terms[:, None]
        return float(((mine - parts.sum(0)).abs() / parts.abs().sum(0)).max())
    return float((mine - terms.sum()).abs().max() / terms.sum())


def check(case: Case, tensors: Tensors) -> None:
    """Raise WrongResult unless some rows of upsweep's answer are right."""
    if case.reduction == "first use":
        return
    answer = tensors.call(function_of(case, tensors.ranges))(0)
    rows = range(0, case.n_rows, max(1, case.n_rows // _CHECKED))
    errors = [_row_error(case, tensors, answer.detach(), row) for row in rows]
    allowed, found = _ALLOWED[case.dtype], max(math.inf if math.isnan(error) else error for error in errors)
    if not found <= allowed:
        raise WrongResult(f"{case.name}, {case.dtype}: error {found:.2g}, at most {allowed:.2g} allowed")


def _first_use(device: str = "cuda") -> float:
    """Seconds of the first call of a formula that no disk has, NVIDIA's compiler loaded."""
    points = torch.rand((50, 3), device=device)

    def call() -> float:
        begin = time.perf_counter()
        # A number that neither this process nor one before it has had.
        constant = f"IntCst({time.time_ns() % 10**9 + next(_new)}) / IntCst(1000000007)"
        result: Any = upsweep.Genred(f"Exp(-SqDist(x, y) * {constant})", ["x = Vi(3)", "y = Vj(3)"])(
            points, points
        )
        result.cpu()
        return time.perf_counter() - begin

    call()
    return harness.median([call() for _ in range(3)])


def measure_case(case: Case, rounds: int = _ROUNDS, warmup: int = 2) -> list[Row]:
    """Check and time one case.

    Raises
    ------
    WrongResult
        Where upsweep's own answer is wrong.
    """
    about: dict[str, Any] = {"dtype": case.dtype, "length": case.length, "family": case.family, "method": OURS}
    if case.reduction == "first use":
        seconds = _first_use()
        return [Row(case.name, seconds=seconds, figure=seconds * 1e3, unit="ms", bar=case.bar, **about)]
    tensors = Tensors(case)
    check(case, tensors)
    function = function_of(case, tensors.ranges)
    samples, notes = cuda_beside.measure(case, (tensors, function), None, rounds, warmup)
    return [_row(case, tensors, samples[OURS], notes.get(OURS, ""), about)]


def _row(case: Case, tensors: Tensors, seconds: list[float], note: str, about: dict[str, Any]) -> Row:
    pairs = case.n_rows * case.n_columns if tensors.ranges is None else tensors.ranges.n_pairs
    rate = f"{pairs / harness.median(seconds) / 1e12:.2f}e12 pairs/s"
    if tensors.ranges is not None:
        rate += f" of the {pairs / case.n_rows / case.n_columns:.1%} kept"
    return Row(
        case.name, seconds=harness.median(seconds), figure=harness.median(seconds) * 1e3, unit="ms", bar=case.bar,
        note="; ".join(filter(None, [rate, note])), p90=harness.quantile(seconds, 0.9), **about,
    )  # fmt: skip
