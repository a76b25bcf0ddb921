"""Histograms (`histogram` and `histc`): cases, numbers, error. CPU thresholds apply to numpy's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import upsweep
from upsweep import reference
from upsweep.bench import timing

from upsweep_bench import case as base
from upsweep_bench import counts
from upsweep_bench.case import PeerThresholds, Source, as_numpy, n_threads, ordered

__all__ = ["Arrays", "Case", "cases"]

_CPU_PEERS = ("torch.histc", "boost-histogram", "fast-histogram")


@dataclass(frozen=True)
class Case(base.OneDimensional):
    """One call to time, of numbers from 0 to `width`. `edges`: bins differ in width. `ranged`: with limits."""

    n: int
    bins: int
    dtype: str = "float32"
    pattern: str = "uniform"  # or "sorted", "all equal", "on edges", "skewed", "since 1970" (nanoseconds)
    edges: bool = False
    weights: str | None = None
    ranged: bool = True
    function_name: str = "histogram"
    threshold: float | None = None
    peers: PeerThresholds = ()
    device: str = "cpu"
    metric: str = "of copy"

    @property
    def name(self) -> str:
        words = [self.function_name, f"{self.n:,} in {self.bins:,} bins"] + ["of given edges"] * self.edges
        words += [f"{self.weights} weights"] * (self.weights is not None) + [self.pattern]
        return " ".join(words + ["range of the data"] * (not self.ranged))

    @property
    def n_bytes(self) -> int:
        return self.n * (np.dtype(self.dtype).itemsize + np.dtype(self.weights or "V0").itemsize) + self.bins * 4

    @property
    def width(self) -> int:
        dtype = np.dtype(self.dtype)
        return 1 if dtype.kind == "f" else 200 if dtype.itemsize == 1 else 1000

    @property
    def limits(self) -> tuple[int, int] | None:
        return (0, self.width) if self.ranged and not self.edges else None

    def bin_edges(self) -> Any:
        """The bins as np.histogram takes them: a number, or edges."""
        return self.width * np.linspace(0, 1, self.bins + 1) ** 2 if self.edges else self.bins

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self, count, device)

    def function(self, arrays: Arrays) -> Callable[..., Any]:
        threads: dict[str, Any] = {} if self.on_cuda else {"n_threads": n_threads()}
        if self.function_name == "histc":
            return lambda x, _: upsweep.histc(x, self.bins, 0, self.width, **threads)
        bins, limits = self.bin_edges(), self.limits
        return lambda x, weights: upsweep.histogram(x, bins, limits, weights=weights, **threads)


class Arrays(base.Arrays):
    """Numbers of the case's pattern, and weights."""

    def __init__(self, case: Case, count: int | None = None, device: str | None = None) -> None:
        self.case, self.source = case, Source(case, device)
        n_sets = self.source.n_sets(case, count)
        weights = partial(self.source.uniform, (case.n,), case.weights) if case.weights else lambda: None
        self.inputs = [(self._numbers(), weights()) for _ in range(n_sets)]

    def _numbers(self) -> Any:
        x = self.source.uniform((self.case.n,))
        if self.case.pattern == "sorted":
            x.sort()
        elif self.case.pattern == "all equal":
            x[...] = 0.37
        elif self.case.pattern == "on edges":
            x = x.round(2)
        elif self.case.pattern == "skewed":
            x **= 8
        elif self.case.pattern == "since 1970":
            return 17 * 10**17 + self.source.cast(x * 1e15, self.case.dtype)
        return self.source.cast(x * self.case.width if self.case.width > 1 else x, self.case.dtype)

    def error(self, answer: Any) -> float:
        case = self.case
        counts = answer[0] if isinstance(answer, tuple) else answer
        x: Any = as_numpy(self.inputs[0][0])
        weights: Any = None if case.weights is None else as_numpy(self.inputs[0][1])
        if case.function_name == "histogram":
            expected: Any = np.histogram(x, case.bin_edges(), case.limits, weights=weights)[0]
        elif case.on_cuda:  # the CPU's result, which the tests compare with the reference and with torch
            expected = upsweep.histc(x, case.bins, 0, case.width)
        else:
            expected = reference.histc(x, case.bins, 0, case.width)
        return base.relative_error(counts, expected, floor=1.0)

    def allowed(self) -> float:
        return 0.0 if self.case.weights is None else 1e-5

    def passes(self, n_threads: int) -> tuple[dict[str, Callable[[], object]], float]:
        source = np.ones(self.case.n_bytes // 2, np.uint8)  # half is read, half written
        return timing.copiers(source, np.empty_like(source), n_threads), 1.0


def cases(quick: bool = False, device: str = "cpu") -> list[Case]:
    """Every case; with `quick` fewer numbers."""
    if device == "cpu":
        return list(_cpu_cases(counts.QUICK_N_CPU if quick else counts.N_CPU))
    n = counts.QUICK_N_CUDA if quick else counts.N_CUDA
    return [
        Case(n, bins, threshold=threshold, function_name="histc", peers=ordered(("torch.histc",)), device="cuda")
        for bins, threshold in ((100, counts.within(0.15e-3, "float32")), (1000, None))
    ]


def _cpu_cases(n: int) -> Iterator[Case]:
    peers, peers_10 = (("numpy", None), *ordered(_CPU_PEERS, None)), (("numpy", 10.0), *ordered(_CPU_PEERS, None))
    yield Case(n, 100, peers=peers_10)
    yield Case(n, 100, ranged=False, peers=peers_10)
    for pattern in ("sorted", "all equal", "on edges", "skewed"):
        yield Case(n, 100, pattern=pattern, peers=peers)
    for dtype in ("float64", "int32", "int64", "uint8", "float16"):
        yield Case(n, 100, dtype, peers=peers)
    for bins in (10, 10_000):
        yield Case(n, bins, peers=peers)
    yield Case(n, 100, edges=True, peers=peers)
    equal = (("numpy", 1.0),)
    for bins in (10, 1000, 10_000, 100_000):
        for dtype in ("float32", "float64", "int64", "float16"):
            for pattern in ("uniform", "sorted"):
                yield Case(1_000_000, bins, dtype, pattern, edges=True, peers=equal)
    yield Case(1000, 1_000_000, peers=equal)  # many narrow bins
    yield Case(1_000_000, 1_000_000, ranged=False, peers=equal)
    yield Case(100_000, 100_000, "int64", "since 1970", ranged=False, peers=equal)
    yield Case(n, 100, weights="float32", peers=peers)
    yield Case(n, 100, "float64", weights="float64", peers=peers)
    yield Case(n, 100, function_name="histc", peers=peers)
