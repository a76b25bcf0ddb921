"""Compares every function of an installed package with ``upsweep.reference``, in a few seconds.

``python -m upsweep selftest`` runs all checks; the benchmarks run them before they report a speed. The tests of
the source distribution cover far more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import upsweep
from upsweep import reference
from upsweep.testing import assert_scan_close

__all__ = ["Check", "assert_recurrence", "checks", "run"]

Array = NDArray[Any]

# The layouts of the kernels: one line, a few, many short ones, the first axis, an axis in the middle.
_LAYOUTS = (((1500,), -1), ((3, 700), -1), ((300, 40), -1), ((400, 24), 0), ((5, 120, 9), 1))
_LONG = 400_000  # elements of one line: many blocks, whose carries are combined
_PIECE = 1 << 18
_PREFIX = 2_000  # elements that the reference, a Python loop, computes


class Check(NamedTuple):
    """A named comparison; `run` raises AssertionError if it fails."""

    name: str
    run: Callable[[], None]


def assert_recurrence(y: Array, gates: ArrayLike, tokens: Array) -> None:
    """Raise AssertionError unless ``y[t] = gates[t] * y[t-1] + tokens[t]`` to rounding, along a line.

    Checks a long line of real numbers in vectorised numpy: each step is computed from the previous element of y.
    The gates are a number or an array of y's length. A wrong carry is reported at the block where it occurs.
    """
    if y[0] != tokens[0]:
        raise AssertionError(f"the first step is {y[0]}, not {tokens[0]}")
    unit = np.finfo(y.dtype).eps / 2
    factors = np.broadcast_to(np.asarray(gates), y.shape)
    for begin in range(1, y.size, _PIECE):  # in pieces, to limit the memory of float64 copies
        now, before = slice(begin, begin + _PIECE), slice(begin - 1, min(begin + _PIECE, y.size) - 1)
        token = tokens[now].astype(np.float64)
        decayed = factors[now] * y[before].astype(np.float64)
        # y[t] and y[t-1] were rounded once each; in float64 the blocks' own sums add a few roundings.
        allowed = (unit + 1e-15) * 4 * (np.abs(y[now]) + np.abs(decayed) + np.abs(token))
        wrong = ~(np.abs(y[now] - (decayed + token)) <= allowed + np.finfo(y.dtype).tiny)
        if wrong.any():
            first = begin + int(np.argmax(wrong))
            raise AssertionError(f"y[{first}] = {y[first]} does not follow from {y[first - 1]} before it")


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    numbers: Array = rng.standard_normal(shape)
    if dtype.kind == "c":
        numbers = numbers + 1j * rng.standard_normal(shape)
    return numbers.astype(dtype)


def _compare(name: str, arrays: tuple[Any, ...], **keywords: Any) -> None:
    """Compare a function with its reference; `arrays` are (gates or x, tokens or gamma)."""
    actual = getattr(upsweep, name)(*arrays, **keywords)
    if actual.dtype.kind in "iu":
        return assert_scan_close(actual, getattr(reference, name)(*arrays, **keywords), 0)
    function = getattr(reference, name.removesuffix("_right").removesuffix("_left"))
    if name.endswith("_right"):
        keywords["reverse"] = True
    sizes = tuple(np.abs(np.asarray(array, np.result_type(array, np.float32))) for array in arrays)
    expected = function(*arrays, **keywords, precision="extended")
    return assert_scan_close(actual, expected, function(*sizes, **keywords, precision="extended"))


def _check_layouts(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(1)
    for shape, axis in _LAYOUTS:
        x = _random(rng, shape, dtype)
        gates = (0.9 + 0.2 * rng.random(shape)).astype(dtype)
        reset = rng.random(shape) < 0.01
        for keywords in ({}, {"reverse": True}, {"reset": reset}, {"exclusive": True}):
            _compare("discounted_cumsum", (x, 0.99), axis=axis, **keywords)
            _compare("linear_recurrence", (gates, x), axis=axis, **keywords)
        _compare("discounted_cumsum", (x, 0.99), axis=axis, window=37, reset=reset)
        _compare("cumulative_sum", (x,), axis=axis)


def _check_names(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(2)
    x, gates = _random(rng, (8, 200), dtype), (0.5 + 0.4 * rng.random((8, 200))).astype(dtype)
    gamma = np.linspace(0.5, 1, 8)[:, np.newaxis]
    _compare("discounted_cumsum_right", (x, gamma))
    _compare("discounted_cumsum_left", (x, gamma))
    expected, scale = reference.pscan(gates, x), np.abs(reference.pscan(gates, np.abs(x)))
    for name in ("pscan", "scan_forward"):
        assert_scan_close(getattr(upsweep, name)(gates, x), expected, scale, rtol=1e-6)
    # The aggregates of two halves of a line combine to that of the line.
    first, second = (
        upsweep.linear_recurrence_carry(gates[:, part], x[:, part]) for part in (np.s_[:100], np.s_[100:])
    )
    whole = np.asarray(upsweep.combine(first, second).value, np.complex128)
    final = np.asarray(upsweep.linear_recurrence(gates, x, return_final=True)[1], np.complex128)
    np.testing.assert_allclose(whole, final, rtol=1e-6, atol=1e-6)


def _check_integers() -> None:
    rng = np.random.default_rng(3)
    for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        x = rng.integers(0, 2 if name == "bool" else 100, (7, 300)).astype(name)
        for axis in (0, 1):
            _compare("cumulative_sum", (x,), axis=axis, reverse=axis == 0)
        _compare("discounted_cumsum", (x, 0.5))


def _check_long_line(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(4)
    x = rng.random(_LONG).astype(dtype)
    gates = (0.99 + 0.01 * rng.random(_LONG)).astype(dtype)
    for factor in (0.999, gates):
        prefix = factor if isinstance(factor, float) else factor[:_PREFIX]
        y = upsweep.linear_recurrence(factor, x)
        assert_recurrence(y, factor, x)
        expected = reference.linear_recurrence(prefix, x[:_PREFIX], precision="extended")
        assert_scan_close(y[:_PREFIX], expected, expected)
        backwards = upsweep.linear_recurrence(factor, x, reverse=True)
        turned = factor if isinstance(factor, float) else factor[::-1]
        assert_recurrence(backwards[::-1], turned, x[::-1])
        for n_threads in (1, 2, 5):
            np.testing.assert_array_equal(upsweep.linear_recurrence(factor, x, n_threads=n_threads), y)


def _compare_counts(*arguments: Any, **keywords: Any) -> None:
    expected = reference.bincount(*arguments, **keywords)
    np.testing.assert_array_equal(upsweep.bincount(*arguments, **keywords), expected)


def _check_bincount() -> None:
    rng = np.random.default_rng(5)
    for name in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        keys = rng.integers(0, 100, 3000).astype(name)
        for least in (0, 300):
            _compare_counts(keys, minlength=least)
        for weights in (rng.random(3000), rng.integers(0, 9, 3000)):
            _compare_counts(keys, weights)
    keys = rng.integers(-5, 50, 3000)
    _compare_counts(keys, length=40, invalid="drop")
    rows, several = keys.reshape(30, 100), rng.integers(-9, 9, (30, 100, 2))
    for axis in (0, 1):
        for of_keys in (None, several[..., 0], several, 1j * several):
            _compare_counts(rows, of_keys, length=50, axis=axis, invalid="drop")
    for n_bins in (10_000, 400_000, 3_000_000):  # per-thread tables, and sizes beyond the caches
        many = rng.integers(0, n_bins, 1_000_000)
        np.testing.assert_array_equal(upsweep.bincount(many), np.bincount(many))
        np.testing.assert_array_equal(upsweep.bincount(many, many), np.bincount(many, many))


def _check_histograms() -> None:
    rng = np.random.default_rng(6)
    for name in ("uint8", "int16", "int32", "uint64", "float16", "float32", "float64"):
        x = (20 * rng.random(2000)).astype(name)
        for bins, limits in ((7, None), (30, (2, 15)), ([0, 1, 1, 4, 9.5, 12], None)):
            for weights in (None, rng.integers(0, 9, 2000)):
                results = (module.histogram(x, bins, limits, weights=weights) for module in (upsweep, reference))
                for actual, expected in zip(*results):  # the counts, and the edges
                    np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(upsweep.histc(x, 20, 3, 17), reference.histc(x, 20, 3, 17))
    many = rng.standard_normal(300_000).astype(np.float32)
    np.testing.assert_array_equal(upsweep.histogram(many, 100)[0], np.histogram(many, 100)[0])


_OF_PAIRS = {
    "sum": "Sum", "logsumexp": "LogSumExp", "sumsoftmaxweight": "SumSoftMaxWeight", "min_argmin": "Min_ArgMin",
    "max_argmax": "Max_ArgMax", "kmin_argkmin": "KMin_ArgKMin",
}  # fmt: skip


def _check_pairs(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(7)
    n_i, n_j = 300, 700
    x, y, b = (_random(rng, shape, dtype) for shape in ((n_i, 3), (n_j, 3), (n_j, 2)))
    i, j, weight = upsweep.Vi(x), upsweep.Vj(y), upsweep.Vj(b)
    squares = -i.sqdist(j)
    some = upsweep.BlockRanges.band(n_i, n_j, 40, 90, block=25)
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    for name, reduction_op in _OF_PAIRS.items():
        formula = squares.exp() * weight if name == "sum" else squares
        other = weight if name == "sumsoftmaxweight" else None
        for axis, ranges in ((1, None), (0, None), (1, some), (0, some)):
            keywords = {"axis": axis, "ranges": ranges, "other": other, "opt_arg": 5}
            results = formula.reduction(reduction_op, **keywords)
            call = formula.reduction(reduction_op, call=False, **keywords)._function
            triple = None if ranges is None else ranges.intervals(call.rows, n_i, n_j)
            arrays = [x, y, b][: len(call.inputs)]
            expected = reference.pair_reduction(call.of("float64"), arrays, n_i, n_j, (), triple)
            for actual, each in zip(results if isinstance(results, tuple) else (results,), expected):
                if actual.dtype.kind == "f":
                    np.testing.assert_allclose(actual.reshape(each.shape), each, rtol=tolerance, atol=tolerance)
    # The gradient of sum_j exp(-|x_i - y_j|^2), by hand.
    value, (dx, _) = squares.exp().sum(axis=1, call=False).value_and_grad()
    kernel = np.exp(-((x[:, None].astype(np.float64) - y) ** 2).sum(axis=2))
    by_hand = -2 * (kernel.sum(axis=1)[:, None] * x - kernel @ y)
    np.testing.assert_allclose(value[:, 0], kernel.sum(axis=1), rtol=tolerance)
    np.testing.assert_allclose(dx, by_hand, rtol=tolerance, atol=tolerance * 100)


def _check_updates(dtype: np.dtype[Any]) -> None:
    """User-defined scans: columns, lines, and a long line that is scanned in parallel."""
    updates: tuple[Callable[[Any, Any], Any], ...] = lambda s, x: np.tanh(0.5 * s + x), lambda s, x: 0.9 * s + x
    rng = np.random.default_rng(0)
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    for shape, axis in (*_LAYOUTS, ((6000,), 0)):
        x = _random(rng, shape, dtype)
        for update in updates:
            actual = upsweep.scan(update, 0.5, x, axis=axis)
            expected = reference.scan(update, 0.5, x, axis=axis)
            np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def checks(counts: bool = True) -> Iterator[Check]:
    """The checks, one for each dtype and operation; without `counts` only of scans."""
    dtypes: list[np.dtype[Any]] = [np.dtype(name) for name in "efdFD"]  # float16 to complex128
    with contextlib.suppress(ImportError):
        import ml_dtypes

        dtypes.append(np.dtype(ml_dtypes.bfloat16))
    for dtype in dtypes:
        yield Check(f"scans, every layout, {dtype.name}", partial(_check_layouts, dtype))
        yield Check(f"scans, other names and carries, {dtype.name}", partial(_check_names, dtype))
    yield Check("scans of integers", _check_integers)
    wide = np.dtype(np.float32), np.dtype(np.float64)
    for dtype in wide:
        yield Check(f"a long line, threads, {dtype.name}", partial(_check_long_line, dtype))
    if counts:
        yield Check("bincount", _check_bincount)
        yield Check("histogram, histc", _check_histograms)
    # Updates and formulas are compiled by llvmlite, which is optional.
    if importlib.util.find_spec("llvmlite") is None:
        return
    for dtype in wide:
        yield Check(f"scans by an update, {dtype.name}", partial(_check_updates, dtype))
        if counts:
            yield Check(f"reductions over pairs, {dtype.name}", partial(_check_pairs, dtype))


def run(counts: bool = True, verbose: bool = True) -> bool:
    """Run the checks and print the failures, with `verbose` all and a summary; returns whether all passed."""
    begin, failures, n_checks = time.perf_counter(), 0, 0
    for check in checks(counts):
        n_checks += 1
        try:
            check.run()
        except Exception as error:  # any exception of a broken build is a failed check and must not end the run
            failures += 1
            print(f"FAILED  {check.name}: {type(error).__name__}: {error}", file=sys.stdout, flush=True)
        else:
            if verbose:
                print(f"ok      {check.name}", flush=True)
    if verbose:
        result = f"{failures} of {n_checks} checks FAILED" if failures else f"all {n_checks} checks passed"
        print(f"\n{result} in {time.perf_counter() - begin:.1f} s")
        if importlib.util.find_spec("llvmlite") is None:
            print("not checked: scans by an update and reductions over pairs, which need llvmlite")
    return failures == 0
