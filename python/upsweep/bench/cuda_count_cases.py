"""Counts that are measured on a GPU, and what each figure should reach. Data only: needs neither torch nor a GPU.

A count reads its keys (and weights) once and writes its bins: its fraction is that of a copy of as many bytes. How
the keys are distributed should hardly matter: those figures are the time of uniform keys over their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["DISTRIBUTIONS", "ITEMSIZES", "PEERS", "Case", "cases"]

ITEMSIZES = {"int64": 8, "int32": 4, "uint8": 1, "float32": 4}
DISTRIBUTIONS = ("all equal", "two values", "sorted", "Zipf", "multiples of 32", "low bins")
PEERS = ("torch.bincount", "scatter_add_", "cupy", "cupy with CUB")

_N = 1 << 27
_QUICK_N = 1 << 24
_COPY = 4.27e12  # bytes a second that a copy moves on the card that the times below are meant for
_BESIDE_UNIFORM = {None: 1 / 1.5, "float32": 1 / 3}  # sums wait for each other where keys are the same
_BESIDE_FREE = 1 / 2  # what an order that is fixed may cost


@dataclass(frozen=True)
class Case:
    """One call to time: `bincount`, or `histc` of float32 where `dtype` is that.

    `figure` says what the bar is about: "of copy" a fraction of a copy's speed, "of uniform" the time of uniform
    keys over that of these, "of free" the time without `deterministic` over that with it. `peers` are pairs of a
    name and its own bar.
    """

    n: int
    n_bins: int
    dtype: str = "int64"
    distribution: str = "uniform"
    weights: str | None = None
    deterministic: bool = False
    bar: float | None = None
    figure: str = "of copy"
    peers: tuple[tuple[str, float | None], ...] = ()

    @property
    def is_histogram(self) -> bool:
        return self.dtype == "float32"

    @property
    def name(self) -> str:
        words = ["histc" if self.is_histogram else "bincount", f"{self.n:,}", f"in {self.n_bins:,} bins"]
        words += [f"{self.weights} weights"] * (self.weights is not None) + [self.distribution]
        return " ".join(words + ["deterministic"] * self.deterministic)

    @property
    def length(self) -> int:
        return self.n

    @property
    def family(self) -> str:
        """What cases that differ in their number of keys only have in common."""
        return self.name.replace(f"{self.n:,} ", "n ", 1) + f", {self.dtype}"

    @property
    def n_bytes(self) -> int:
        """The fewest bytes that the call can move: keys and weights are read, bins written."""
        each = ITEMSIZES[self.dtype] + (ITEMSIZES[self.weights] if self.weights else 0)
        return self.n * each + self.n_bins * (4 if self.weights or self.is_histogram else 8)


def _within(seconds: float, dtype: str, n_bins: int = 0) -> float:
    """The fraction of a copy's speed that this time for all keys is."""
    return (_N * ITEMSIZES[dtype] + n_bins * 8) / _COPY / seconds


_TIMES = {
    "int64": {2: 0.26e-3, 256: 0.26e-3, 257: 0.26e-3, 4096: 0.26e-3, 6143: 0.29e-3, 12_287: 0.29e-3,
              50_000: 0.29e-3, 65_536: 0.40e-3, 1_000_000: 0.8e-3, 100_000_000: 3e-3},
    "int32": {256: 0.16e-3, 4096: 0.16e-3},
    "uint8": {2: 0.055e-3, 256: 0.055e-3},
}  # fmt: skip
_MANY_BINS = 10_000_000


def _ahead(names: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((name, 1.0) for name in names)


def _counts(n: int) -> Iterator[Case]:
    for dtype, times in _TIMES.items():
        for n_bins, seconds in times.items():
            # Those times are for the largest n: where bins are many their own bytes are not to be forgotten.
            bar = None if n < _N and n_bins > 50_000 else _within(seconds, dtype, n_bins)
            yield Case(n, n_bins, dtype, bar=bar, peers=_ahead(PEERS))
    for n_bins in _TIMES["int64"]:
        for distribution in DISTRIBUTIONS:
            peers = _ahead(PEERS) if distribution == "all equal" else ()
            yield Case(n, n_bins, distribution=distribution, bar=1 / 1.5, figure="of uniform", peers=peers)


def _sums(n: int) -> Iterator[Case]:
    for n_bins in (2, 256, 4096, 12_287, 65_536, 1_000_000):
        bar = 0.6 if n_bins <= 4096 else None
        yield Case(n, n_bins, weights="float32", bar=bar, peers=_ahead(PEERS))
        for distribution in DISTRIBUTIONS[:4]:
            bar = _BESIDE_UNIFORM["float32"]
            yield Case(n, n_bins, "int64", distribution, "float32", bar=bar, figure="of uniform")
    for n_bins in (256, 4096):
        yield Case(
            n, n_bins, weights="float32", deterministic=True, bar=_BESIDE_FREE, figure="of free",
        )  # fmt: skip


def _lengths() -> Iterator[Case]:
    for n_bins in (256, 4096, 1_000_000):
        for n in (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000):
            yield Case(n, n_bins, peers=_ahead(("torch.bincount", "cupy")))


def _histograms(n: int) -> Iterator[Case]:
    for n_bins in (100, 1000):
        bar = _within(0.15e-3, "float32") if n_bins == 100 else None
        yield Case(n, n_bins, "float32", bar=bar, peers=_ahead(("torch.histc",)))


def cases(quick: bool = False) -> list[Case]:
    """Every case; with `quick` fewer keys, no more bins than keys, and no series over their number."""
    n = _QUICK_N if quick else _N
    found = [*_counts(n), *_sums(n), *([] if quick else _lengths()), *_histograms(n)]
    return [case for case in found if not quick or case.n_bins < _MANY_BINS]
