"""Histograms against numpy's, to the last count; histc against its reference."""

import warnings

import numpy as np
import upsweep
from helpers import same_bits
from upsweep import reference

from .driver import Case
from .operands import THREADS, chance, described, laid_out, pick, shape

DTYPES = (
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
)  # fmt: skip


def draw(rng):
    """One call of histogram or histc."""
    x = _numbers(rng, np.dtype(pick(rng, *DTYPES)), shape(rng, 2, 3001))
    name = "histc" if chance(rng, 0.2) else "histogram"
    keywords = {"bins": int(pick(rng, 1, 2, 3, 10, 64, 100, 257, 1000))}
    if name == "histc":
        if chance(rng, 0.6):
            keywords["min"], keywords["max"] = _range(rng, x)
        x = laid_out(rng, x)
        return Case(f"upsweep.histc({described(x, **keywords)})", lambda: _check_histc(x, keywords))
    if chance(rng, 0.4):
        keywords["bins"] = _edges(rng, x)
    if chance(rng, 0.4):
        keywords["range"] = _range(rng, x)
    if chance(rng, 0.4):
        weights = rng.integers(-3, 4, x.shape).astype(
            pick(rng, "float32", "float64", "int32", "complex128", "int8")
        )
        keywords["weights"] = laid_out(rng, weights)
    keywords["density"] = chance(rng, 0.2)
    x = laid_out(rng, x)
    return Case(f"upsweep.histogram({described(x, **keywords)})", lambda: _check(x, keywords))


def _numbers(rng, dtype, size):
    """Numbers of some magnitude, around edges, or of the whole range of the dtype."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if chance(rng, 0.5):
            return rng.integers(limits.min, limits.max, size, dtype, endpoint=True)
        return rng.integers(max(-60, limits.min), 60, size).astype(dtype)
    way = rng.integers(5)
    if way == 0:
        x = rng.normal(size=size)
    elif way == 1:
        x = rng.integers(0, 64, size) / pick(rng, 1, 8, 10, 63)
    elif way == 2:
        x = rng.uniform(size=size) * pick(rng, 1e-30, 1e30, 1e-310, 1e300, 1e-5)
    elif way == 3:
        x = np.full(size, rng.normal())
    else:
        x = 1 + rng.integers(0, 50, size) * float(np.finfo(dtype).eps)
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    if x.size and chance(rng, 0.2):
        for place in rng.integers(x.size, size=3):
            x.flat[place] = pick(rng, np.nan, np.inf, -np.inf, -0.0, float(np.finfo(dtype).max))
    return x


def _range(rng, x):
    """Two of the numbers, or others around them."""
    finite = x[np.isfinite(x)]
    if finite.size and chance(rng, 0.6):
        low, high = sorted(rng.choice(finite.ravel(), 2).tolist())
    else:
        low, high = sorted(pick(rng, (0, 1), (-1.5, 2.25), (0, 100), (3, 3), (-1e10, 1e10), (0.1, 0.7)))
    return (low, high) if chance(rng, 0.5) else (float(low), float(high))


def _edges(rng, x):
    """Irregular edges: random, whole, equal to numbers of x, of another dtype."""
    n = int(pick(rng, 2, 3, 8, 50, 300))
    if chance(rng, 0.5) and np.isfinite(x).any():
        edges = np.sort(rng.choice(x[np.isfinite(x)].ravel(), n))
    else:
        edges = np.sort(rng.normal(size=n) * pick(rng, 1, 50))
    if chance(rng, 0.3):
        edges = edges.astype(pick(rng, "float32", "float64", "int64"))
    edges = np.sort(edges)
    return edges.tolist() if chance(rng, 0.3) else edges


def _result(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except (ValueError, OverflowError) as error:
            return error


def _check(x, keywords):
    result = _result(lambda: upsweep.histogram(x, **keywords))
    # numpy 2.4 sorts infinite float16 wrongly on CPUs with AVX-512, which shows with given edges.
    sorted_right = (
        x.astype(np.float32) if x.dtype.newbyteorder("=") == np.float16 and np.ndim(keywords["bins"]) else x
    )
    try:
        expected = _result(lambda: np.histogram(sorted_right, **keywords))
    except IndexError:  # numpy's own, where its edges are infinite in float16
        return
    if isinstance(expected, OverflowError):  # numpy's own, for uint64 and a range of Python's numbers above 2**63
        return
    if isinstance(result, ValueError) and isinstance(expected, tuple) and not np.isfinite(expected[1]).all():
        return  # a range that float16 cannot hold, where numpy's edges are infinite
    if isinstance(expected, Exception) or isinstance(result, Exception):
        assert isinstance(expected, Exception) and isinstance(result, Exception), (expected, result)
        return
    for got, want in zip(result, expected):
        assert got.dtype == want.dtype.newbyteorder("="), (got.dtype, want.dtype)
        np.testing.assert_array_equal(got, want)
    for n_threads in THREADS:
        again = _result(lambda n=n_threads: upsweep.histogram(x, **keywords, n_threads=n))
        assert same_bits(again, result), f"n_threads={n_threads}"


def _check_histc(x, keywords):
    result = _result(lambda: upsweep.histc(x, **keywords))
    if isinstance(result, Exception):  # a range that is not finite, or counts that the dtype cannot hold
        return
    expected = reference.histc(x, **keywords)
    assert result.dtype == expected.dtype.newbyteorder("="), (result.dtype, expected.dtype)
    np.testing.assert_array_equal(result, expected)
    for n_threads in THREADS:
        assert same_bits(upsweep.histc(x, **keywords, n_threads=n_threads), result)
