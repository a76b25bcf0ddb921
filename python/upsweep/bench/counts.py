"""Counts against np.bincount, ten million keys. No bars yet: a first version."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import upsweep
from upsweep.bench.harness import Call, measure
from upsweep.bench.report import Row

__all__ = ["run"]

# dtype of the keys, bins, dtype of the weights
_CASES: tuple[tuple[str, int, str | None], ...] = (
    ("int64", 256, None),
    ("int32", 256, None),
    ("uint8", 256, None),
    ("int64", 10_000, None),
    ("int64", 1_000_000, None),
    ("int64", 256, "float32"),
    ("int64", 256, "float64"),
    ("int64", 10_000, "float64"),
)


def _row(dtype: str, n_bins: int, weights: str | None, n: int, n_threads: int | None, rounds: int) -> Row:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, n_bins, n).astype(dtype)
    given = None if weights is None else rng.random(n, np.float32).astype(weights)
    methods: dict[str, Call] = {
        "upsweep": lambda: upsweep.bincount(keys, given, n_threads=n_threads),
        "np": lambda: np.bincount(keys, given),
    }
    samples = measure(methods, rounds, burst=2)
    case = f"bincount {n:,} keys, {n_bins:,} bins" + ("" if weights is None else f", {weights} weights")
    ratio = samples.best("np") / samples.best("upsweep")
    return Row(
        case,
        dtype,
        samples.best("upsweep"),
        ratio,
        "x",
        n_bytes=keys.nbytes + (0 if given is None else given.nbytes),
        median=samples.median_ratio("np", "upsweep"),
        note=f"np.bincount {samples.best('np') * 1e3:.1f} ms",
        busy=None if samples.quiet else samples.others,
    )


def run(
    only: str = "",
    quick: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the cases whose row contains `only`: np.bincount's time over upsweep's, bytes are read once."""
    rows = []
    n = 1_000_000 if quick else 10_000_000
    for done, (dtype, n_bins, weights) in enumerate(_CASES):
        if only in f"bincount {dtype} {n_bins} {weights}":
            rows.append(_row(dtype, n_bins, weights, n, n_threads, rounds=3))
        if progress is not None:
            progress(done + 1, len(_CASES))
    return rows
