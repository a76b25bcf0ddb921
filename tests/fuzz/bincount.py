"""Counts and sums of weights, against `upsweep.reference.bincount`, to the last bit."""

import numpy as np
import upsweep
from helpers import BFLOAT16, same_bits
from upsweep import reference

from .driver import Case
from .operands import THREADS, chance, described, laid_out, output, pick, shape

KEYS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
WEIGHTS = (
    "bool", "int8", "uint16", "int32", "int64", "uint64", "float16", BFLOAT16, "float32", "float64", "complex64",
    "complex128",
)  # fmt: skip


def draw(rng):
    """One call of bincount."""
    size = shape(rng, int(pick(rng, 1, 3)), 500)
    if chance(rng, 0.2):
        size = pick(rng, (20_000,), (70_000,), (200_000,))
    axis = int(rng.integers(-len(size), len(size))) if len(size) > 1 or chance(rng, 0.2) else None
    x, keywords = _keys(rng, size), {}
    if axis is not None:
        keywords["axis"] = axis
    exact = size == (200_000,) or chance(rng, 0.5)  # sums of many keys are in chunks
    weights = _weights(rng, size, exact) if chance(rng, 0.6) else None
    if weights is not None and chance(rng, 0.2):
        keywords["dtype"] = _dtype(rng, weights)
    if chance(rng, 0.3):
        keywords["minlength"] = int(pick(rng, 0, 1, 7, 300))
    if chance(rng, 0.6):
        keywords["length"] = int(pick(rng, 1, 2, 10, 127, 128, 129, 200, 255, 256, 257, 1000, 70_000))
        if keywords["length"] < keywords.get("minlength", 0):
            del keywords["minlength"]
    if chance(rng, 0.5):
        keywords["invalid"] = "drop"
    x = laid_out(rng, x)
    accumulate = exact and chance(rng, 0.2)
    text = f"upsweep.bincount({described(x, weights, **keywords)}){', accumulated' if accumulate else ''}"
    return Case(text, lambda: _check(rng, x, weights, keywords, accumulate))


def _keys(rng, size):
    dtype = np.dtype(pick(rng, *KEYS))
    if dtype.kind == "b":
        return rng.random(size) < 0.5
    limits = np.iinfo(dtype)
    most = min(int(pick(rng, 1, 5, 100, 127, 255, 1000, 40_000)), limits.max)
    keys = rng.integers(0, most, size, endpoint=True).astype(dtype)
    if chance(rng, 0.5) and keys.size:
        for place in rng.integers(keys.size, size=rng.integers(1, 9)):
            keys.flat[place] = pick(rng, limits.min, limits.min + 1, -1 if limits.min else 0, 0, most)
    return keys


def _weights(rng, size, exact):
    """One weight for each key, or a row of them; whole numbers if sums are to be exact."""
    dtype = np.dtype(pick(rng, *WEIGHTS))
    many = (*size, int(rng.integers(1, 5))) if chance(rng, 0.3) else size
    if dtype.kind in "biu" or exact:
        numbers = rng.integers(0 if dtype.kind in "bu" else -3, 2 if dtype.kind == "b" else 4, many)
    else:
        numbers = rng.normal(size=many)
    if dtype.kind == "c":
        numbers = numbers + 1j * rng.integers(-3, 4, many)
    weights = numbers.astype(dtype)
    if not exact and dtype.kind in "fc" and weights.size and chance(rng, 0.2):
        weights.flat[rng.integers(weights.size)] = pick(rng, np.nan, np.inf, -np.inf)
    return laid_out(rng, weights)


def _dtype(rng, weights):
    if weights.dtype.kind == "c":
        return pick(rng, np.complex64, np.complex128)
    if weights.dtype.kind in "biu":
        return pick(rng, np.int64, np.int32, np.uint64, np.float32, np.float64)
    return pick(rng, np.float32, np.float64, np.complex128)


def _result(call):
    try:
        return call()
    except ValueError as error:
        return error


def _check(rng, x, weights, keywords, accumulate):
    expected = _result(lambda: _reference(x, weights, **keywords))
    if not isinstance(expected, Exception) and expected.size > 10**7:
        return
    result = _result(lambda: upsweep.bincount(x, weights, **keywords))
    if isinstance(expected, Exception) or isinstance(result, Exception):
        assert isinstance(expected, Exception) and isinstance(result, Exception), (expected, result)
        return
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result.dtype, result.shape)
    np.testing.assert_array_equal(result, expected)
    for n_threads in THREADS:
        again = upsweep.bincount(x, weights, **keywords, n_threads=n_threads)
        assert same_bits(again, result), f"n_threads={n_threads}"
    if keywords.get("invalid") == "drop" and "length" in keywords:
        counted, n_invalid = upsweep.bincount(x, weights, **keywords, return_invalid=True)
        assert same_bits(counted, result)
        assert n_invalid == sum(not 0 <= key < keywords["length"] for key in x.ravel().tolist())
    out = output(rng, result)
    start = rng.integers(-5, 5, result.shape).astype(result.dtype) if accumulate else np.zeros_like(result)
    out[...] = start
    keywords = {name: value for name, value in keywords.items() if name not in ("length", "minlength")}
    upsweep.bincount(x, weights, **keywords, out=out, accumulate=accumulate)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, start + expected)


def _reference(x, weights, **keywords):
    if x.ndim == 1 and x.size > 10_000:
        return _reference_of_many(x, weights, **keywords)
    if keywords.get("axis", 0) < 0:
        keywords["axis"] += x.ndim  # of x: weights may have one axis more
    return reference.bincount(x, weights, **keywords)


def _reference_of_many(x, weights, minlength=0, length=None, invalid="raise", dtype=None, axis=0):
    """The same of many keys along their one axis; sums of more than 2**17 have to be exact."""
    keys = x.astype(object if x.dtype == np.uint64 else np.int64)
    valid = (keys >= 0) & (keys < length) if length is not None else keys >= 0
    if invalid == "raise" and not valid.all():
        raise ValueError("a key has no bin")
    n_bins = length if length is not None else max(minlength, int(keys[valid].max(initial=-1)) + 1)
    terms = np.ones(x.shape, np.intp) if weights is None else weights
    kind = np.intp if weights is None else np.complex128 if terms.dtype.kind == "c" else np.float64
    result = np.zeros((n_bins, *terms.shape[1:]), kind)
    np.add.at(result, keys[valid].astype(np.intp), terms[valid].astype(kind))
    return result if dtype is None else result.astype(dtype)
