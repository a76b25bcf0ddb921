"""Counts against np.bincount, for keys of every distribution, beside torch, numba and a copy of the same bytes.

Each answer is compared with numpy's before it is timed. The figure is np.bincount's time over upsweep's; the note
has the milliseconds of the others that are installed and answer rightly, and of the fastest copy of the bytes that
are read: no count is faster than about twice that copy, which writes as much as it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep.bench.harness import Call, Samples, copiers, measure
from upsweep.bench.peers import optional
from upsweep.bench.report import Row

__all__ = ["Case", "cases", "make_keys", "run"]

Array = NDArray[Any]

_DISTRIBUTIONS = ("uniform", "Zipf", "sorted", "all equal")


@dataclass(frozen=True)
class Case:
    """One count to time: `n_bins` bins, keys and weights of these dtypes."""

    dtype: str
    n_bins: int
    distribution: str
    weights: str | None = None
    bar: float | None = None

    @property
    def name(self) -> str:
        words = f"bincount {self.n_bins:,} bins, {self.distribution}"
        return words if self.weights is None else f"{words}, {self.weights} weights"


def cases(quick: bool = False) -> list[Case]:
    """Every case; `quick`: without the ones whose keys take long to make."""
    found = []
    for distribution in _DISTRIBUTIONS:
        spread = distribution in ("uniform", "Zipf")
        for n_bins in (2, 256, 10_000):
            found.append(Case("int64", n_bins, distribution, bar=2.8 if spread else 4.0))
        for n_bins in (256, 10_000):
            found.append(Case("int32", n_bins, distribution, bar=7.0))
        found += [Case("uint8", 256, distribution, bar=8.0), Case("uint16", 256, distribution, bar=8.0)]
        for n_bins in (256, 10_000):
            found.append(Case("int64", n_bins, distribution, "float64", 2.3))
            found.append(Case("int64", n_bins, distribution, "float32", 5.0))
    if not quick:
        found.append(Case("uint16", 60_000, "uniform", bar=8.0))
        for n_bins, bar in ((1_000_000, 3.0), (16_000_000, 3.5)):
            for distribution in _DISTRIBUTIONS:
                found.append(Case("int64", n_bins, distribution, bar=bar if distribution == "uniform" else 1.0))
            found.append(Case("int64", n_bins, "uniform", "float64", 1.0))
    return found


def make_keys(case: Case, n: int, seed: int = 0) -> Array:
    """Keys of the case's dtype and distribution."""
    rng = np.random.default_rng(seed)
    if case.distribution == "all equal":
        return np.full(n, case.n_bins - 1, case.dtype)
    if case.distribution == "Zipf":
        shares = np.cumsum(1.0 / np.arange(1, case.n_bins + 1))
        keys = np.searchsorted(shares / shares[-1], rng.random(n))
        return np.minimum(keys, case.n_bins - 1).astype(case.dtype)
    keys = rng.integers(0, case.n_bins, n, case.dtype)
    if case.distribution == "sorted":
        keys.sort()
    return keys


def _numba(keys: Array, weights: Array | None, n_bins: int) -> Call | None:
    """The plain loop, compiled by numba; None without numba. The number of bins is told, not looked for."""
    numba = optional("numba")
    if numba is None:
        return None

    def count(keys: Array, counts: Array) -> Array:
        for key in keys:
            counts[key] += 1
        return counts

    def add(keys: Array, weights: Array, sums: Array) -> Array:
        for t in range(keys.size):
            sums[keys[t]] += weights[t]
        return sums

    if weights is None:
        counting = numba.njit(count)
        return lambda: counting(keys, np.zeros(n_bins, np.int64))
    adding = numba.njit(add)
    return lambda: adding(keys, weights, np.zeros(n_bins))


def _torch(keys: Array, weights: Array | None) -> Call | None:
    """torch.bincount; None without torch, or where it does not take such keys."""
    torch = optional("torch")
    if torch is None or keys.dtype == np.uint16:
        return None
    held = torch.from_numpy(keys)
    if weights is None:
        return partial(torch.bincount, held)
    return partial(torch.bincount, held, torch.from_numpy(weights))


def _agrees(call: Call, expected: Array, exactly: bool) -> bool:
    answer = np.asarray(call())[: expected.size]
    if answer.shape != expected.shape:
        return False
    return bool((answer == expected).all() if exactly else np.allclose(answer, expected, rtol=1e-9, atol=1e-9))


def _row(case: Case, n: int, n_threads: int | None, rounds: int) -> Row:
    keys = make_keys(case, n)
    weights = None
    if case.weights is not None:
        weights = np.random.default_rng(1).random(n, np.float32).astype(case.weights)
    expected = np.bincount(keys, weights)
    found: dict[str, Call | None] = {
        "upsweep": lambda: upsweep.bincount(keys, weights, n_threads=n_threads),
        "numpy": lambda: np.bincount(keys, weights),
        "torch": _torch(keys, weights),
        "numba": _numba(keys, weights, case.n_bins),
    }
    methods = {name: call for name, call in found.items() if call is not None}
    wrong = [name for name, call in methods.items() if not _agrees(call, expected, weights is None)]
    if "upsweep" in wrong:
        return Row(case.name, case.dtype, None, None, "x", case.bar, note="the answer is wrong: not timed")
    methods = {name: call for name, call in methods.items() if name not in wrong}
    methods |= copiers(keys, np.zeros_like(keys), upsweep.get_num_threads() if n_threads is None else n_threads)
    n_bytes = keys.nbytes + (0 if weights is None else weights.nbytes)
    samples = measure(methods, rounds, burst=2)
    return Row(
        case.name,
        case.dtype,
        samples.best("upsweep"),
        samples.best("numpy") / samples.best("upsweep"),
        "x",
        case.bar,
        n_bytes,
        samples.median_ratio("numpy", "upsweep"),
        _note(samples, wrong, n_bytes / keys.nbytes),
        busy=None if samples.quiet else samples.others,
    )


def _note(samples: Samples, wrong: list[str], scale: float) -> str:
    """The others' milliseconds; `scale`: the bytes read over those that the copies copy."""
    times = [
        f"{name} {samples.best(name) * 1e3:.1f}" for name in ("numpy", "torch", "numba") if name in samples.seconds
    ]
    times.append(f"copy {samples.best(samples.fastest('copy')) * scale * 1e3:.1f}")
    return ", ".join(times) + " ms" + "".join(f"; {name}'s answer is wrong" for name in wrong)


def run(
    only: str = "",
    quick: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the cases whose name and dtype contain `only`."""
    chosen = [case for case in cases(quick) if only in f"{case.name}, {case.dtype}"]
    rows = []
    for case in chosen:
        rows.append(_row(case, 1_000_000 if quick else 20_000_000, n_threads, rounds=2 if quick else 3))
        if progress is not None:
            progress(len(rows), len(chosen))
    return rows
