"""Aggregates on a device: of numpy arrays, which are copied to it, and of cupy arrays."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, DTYPES, SCANS, operands, random

pytestmark = pytest.mark.cuda


def cupy_array(value):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def same(result, expected, close=1e-10):
    for a, b in zip(result, expected):
        a = a if isinstance(a, np.ndarray) else a.get()
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=close, atol=close)


def check(function, arrays, **keywords):
    """Compare numpy arrays on a device, and cupy arrays, with the CPU."""
    expected = function(*arrays, **keywords)
    # A lane takes 16 elements of the short dtypes in float32.
    short = any(isinstance(a, np.ndarray) and a.dtype.itemsize == 2 for a in arrays)
    close = 1e-5 if short else 1e-10
    same(function(*arrays, device="cuda", **keywords), expected, close)
    if not any(isinstance(a, np.ndarray) and a.dtype == BFLOAT16 for a in arrays):
        on_device = {key: cupy_array(value) for key, value in keywords.items()}
        same(function(*map(cupy_array, arrays), **on_device), expected, close)


# Every regime: short lines, lines, split lines, columns, split columns.
SHAPES = [((3, 40), 1), ((700, 3000), 1), ((3, 30_000), 1), ((500, 2000), 0), ((20_000, 33), 0), ((7,), 0),
          ((2, 50, 3), 1), ((3, 0), 1), ((0, 3), 1), ((0, 3), 0)]  # fmt: skip


@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("name", SCANS)
def test_every_regime(name, shape, axis):
    function = getattr(upsweep, f"{name}_carry")
    arrays = operands(name, shape, np.float32)
    for reset in (None, random(shape, seed=4) > 0.999):
        for reverse in (False, True):
            check(function, arrays, axis=axis, reverse=reverse, reset=reset)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_dtypes(name, dtype):
    function = getattr(upsweep, f"{name}_carry")
    for shape, axis in (((3, 1000), 1), ((1000, 9), 0), ((3, 0), 1)):
        check(function, operands(name, shape, dtype, gamma=-0.999), axis=axis)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers(dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 3000)).astype(dtype)
    check(upsweep.cumulative_sum_carry, (x,))
    check(upsweep.cumulative_sum_carry, (x,), dtype=np.float64)
    check(upsweep.discounted_cumsum_carry, (x, 0.5))


def test_integers_after_integers():
    x = np.random.default_rng(0).integers(-9, 9, (3, 3000))
    reset = random((3, 3000), seed=3) > 0.9995
    expected = [
        upsweep.cumulative_sum_carry(x[:, p], reset=reset[:, p]) for p in (slice(0, 1300), slice(1300, 3000))
    ]
    result = [upsweep.Carry(*map(cupy_array, carry)) for carry in expected]
    same(upsweep.combine(*result), upsweep.combine(*expected))
    for state in (np.array([5, -3, 8]), np.int32(7)):
        same([result[0].apply(cupy_array(state))], [expected[0].apply(state)])


def test_factors_of_every_kind():
    x = random((3, 300))
    numbers = (0.0, 1.0, -1.001, 2, np.nan, np.inf, 0.3 - 0.4j)
    for gamma in (*numbers, random((3, 1)), random((300,)), random((3, 300), seed=1), random((3, 1), complex)):
        check(upsweep.discounted_cumsum_carry, (x, gamma))
        check(upsweep.discounted_cumsum_carry, (x[:, ::-2][:, :149], 0.9))
    check(upsweep.linear_recurrence_carry, (random((3, 300), seed=1), x + 1j))


def test_products_that_overflow_on_the_way():
    gates = np.ones((3, 2000))
    gates[0, 500:600], gates[0, 700:900], gates[1, 7], gates[2, 1999] = 1e30, 1e-30, np.nan, np.inf
    result, expected = (
        upsweep.linear_recurrence_carry(gates, np.ones((3, 2000)), device=d) for d in ("cuda", "cpu")
    )
    np.testing.assert_allclose(result.value, expected.value)
    # The products of tiles are multiplied in another order there, and infinity times 0 is no number.
    result, expected = (
        upsweep.linear_recurrence_carry(gates, np.zeros((3, 2000)), device=d) for d in ("cuda", "cpu")
    )
    np.testing.assert_array_equal(np.isfinite(result.multiplier), np.isfinite(expected.multiplier))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_blocks_after_blocks(dtype):
    gates, x = operands("linear_recurrence", (3, 4000), dtype)
    gates /= np.abs(gates)
    gates *= np.float32(0.9999)
    reset = random((3, 4000), seed=3) > 0.9995
    x[1, 3000], gates[2, 5] = np.inf, np.nan
    cut = [(gates[:, p], x[:, p], reset[:, p]) for p in (slice(0, 1300), slice(1300, 4000))]
    expected = [upsweep.linear_recurrence_carry(a, b, reset=c) for a, b, c in cut]
    result = [
        upsweep.linear_recurrence_carry(cupy_array(a), cupy_array(b), reset=cupy_array(c)) for a, b, c in cut
    ]
    same(upsweep.combine(*result), upsweep.combine(*expected))
    for state in (2.0, random((3,), np.float32), random((5, 3))):
        same([result[1].apply(cupy_array(state))], [expected[1].apply(state)])


def test_many_lines_after_lines():
    carries = [
        upsweep.linear_recurrence_carry(*operands("linear_recurrence", (70_000, 3), seed=s)) for s in (0, 5)
    ]
    result = [upsweep.Carry(*map(cupy_array, carry)) for carry in carries]
    same(upsweep.combine(*result), upsweep.combine(*carries))
