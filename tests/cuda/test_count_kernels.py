"""Kernels of counts and sums of weights (cuda/bincount), compiled for the host: every algorithm against numpy."""

import host_counts
import numpy as np
import pytest
from host_device import needs_compiler
from kernel_cases import COUNT_REGIMES, SUM_REGIMES

pytestmark = needs_compiler

N = 9_003


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return host_counts.compile_library(tmp_path_factory.mktemp("counts"))


def zipf(rng, n_bins, shape):
    return np.minimum(np.exp(rng.random(shape) * np.log(n_bins)) - 1, n_bins - 1).astype(np.int64)


KEYS = {
    "uniform": lambda rng, n_bins, shape: rng.integers(0, n_bins, shape),
    "zipf": zipf,
    "equal": lambda rng, n_bins, shape: np.full(shape, n_bins // 2),
    "two": lambda rng, n_bins, shape: np.where(rng.random(shape) < 0.5, 0, n_bins - 1),
    "sorted": lambda rng, n_bins, shape: np.sort(rng.integers(0, n_bins, shape), axis=None).reshape(shape),
    "outside": lambda rng, n_bins, shape: rng.integers(-n_bins // 8, n_bins + n_bins // 8, shape),
}


def expected(keys, n_bins, weights=None):
    """The bins of the last axis, and how many keys are outside."""
    inside = (keys >= 0) & (keys < n_bins)
    rows = keys.reshape(-1, keys.shape[-1])
    result = np.zeros((len(rows), n_bins), np.int64 if weights is None else np.float64)
    for n, row in enumerate(rows):
        valid = inside.reshape(rows.shape)[n]
        of_row = None if weights is None else weights.reshape(rows.shape)[n][valid]
        result[n] = np.bincount(row[valid].astype(np.int64), of_row, n_bins)
    return result.reshape(*keys.shape[:-1], n_bins), int((~inside).sum())


# The bins that each algorithm takes, with the limits of `host_counts`.
COUNTED = {
    100: "tables", 3000: "tables", 15_000: "parts", 40_000: "parts", 66_000: "parts", 71_000: "parts",
    900_000: "memory",
}  # fmt: skip
SUMMED = {100: "replicas", 20_000: "replicas", 60_000: "memory", 70_000: "memory"}  # float32 from 20,000 on: parts


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("n_bins", COUNTED)
def test_counts(library, n_bins, dtype, kind):
    keys = KEYS[kind](np.random.default_rng(0), n_bins, N).astype(dtype)
    for view in (keys, np.repeat(keys, 2)[::2], keys[1:]):
        counts, n_outside = expected(view, n_bins)
        regime, out, dropped = host_counts.count(library, view, n_bins)
        assert COUNT_REGIMES[regime] == COUNTED[n_bins]
        np.testing.assert_array_equal(out, counts)
        assert dropped == n_outside
    again = host_counts.count(library, keys, n_bins, out=np.full(n_bins, 5), accumulate=True)[1]
    np.testing.assert_array_equal(again, expected(keys, n_bins)[0] + 5)


def test_counts_of_rows(library):
    keys = np.random.default_rng(0).integers(-1, 40, (50, 300)).astype(np.int16)
    regime, out, dropped = host_counts.count(library, keys, 40)
    counts, n_outside = expected(keys, 40)
    assert COUNT_REGIMES[regime] == "rows" and dropped == n_outside
    np.testing.assert_array_equal(out, counts)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("weight", ["float32", "float64", "int32"])
@pytest.mark.parametrize("n_bins", SUMMED)
def test_sums(library, n_bins, weight, kind):
    rng = np.random.default_rng(0)
    keys = KEYS[kind](rng, n_bins, N + 1)[1:]
    weights = (rng.integers(-99, 99, N) if weight == "int32" else rng.standard_normal(N)).astype(weight)
    sums, n_outside = expected(keys, n_bins, weights.astype(float))
    scale = expected(keys, n_bins, np.abs(weights.astype(float)))[0]
    for deterministic in (False, True):
        regime, out, dropped = host_counts.count(
            library, keys, n_bins, weights, dtype=np.int64 if weight == "int32" else np.float64,
            deterministic=deterministic,
        )  # fmt: skip
        is_ordered = deterministic and weight != "int32"
        unordered = "parts" if weight == "float32" and n_bins > 100 else SUMMED[n_bins]
        assert SUM_REGIMES[regime] == ("own tables" if is_ordered else unordered) and dropped == n_outside
        assert (np.abs(out - sums) <= 1e-13 * scale).all()
