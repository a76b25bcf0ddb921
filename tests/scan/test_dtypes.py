"""Hazard: every dtype, and every pair of dtypes that meet in one call."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, DTYPES, SCANS, check, dtype_name, operands, random, wide
from upsweep import reference

INTEGERS = [np.dtype(t) for t in ("bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_the_result_has_the_dtype_of_the_input(name, dtype, reverse):
    for shape, axis in [((257,), 0), ((40, 33), 1), ((33, 40), 0), ((3, 65, 4), 1)]:
        y = check(name, *operands(name, shape, dtype), axis=axis, reverse=reverse)
        assert y.dtype == dtype


@pytest.mark.parametrize("dtype", INTEGERS, ids=dtype_name)
def test_integers_promote_to_float64(dtype):
    x = np.arange(60).reshape(3, 20).astype(dtype)
    assert check("discounted_cumsum", x, 0.5).dtype == np.float64
    assert check("linear_recurrence", x % 2, x).dtype == np.float64
    assert check("discounted_cumsum", x, 0.5, axis=0, reverse=True).dtype == np.float64


@pytest.mark.parametrize("dtype", INTEGERS, ids=dtype_name)
def test_sums_of_integers_are_numpys(dtype):
    x = np.arange(300).reshape(3, 100).astype(dtype)
    for axis in (0, 1):
        y = upsweep.cumulative_sum(x, axis=axis)
        expected = np.cumsum(x, axis=axis)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)
    check("cumulative_sum", x, reverse=True, return_final=True, initial=5)


def integers_of(shape, dtype):
    rng = np.random.default_rng(1)
    if np.dtype(dtype).kind == "b":
        return rng.random(shape) < 0.5
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("out_dtype", [None, "int32", "uint64", "int16"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=dtype_name)
def test_sums_of_integers_in_every_layout(dtype, out_dtype):
    """Lines, columns and strided elements, with and without the options."""
    for shape, axis in [((3, 100), 1), ((50, 33), 0), ((2, 40, 9), 1)]:
        contiguous = integers_of(shape, dtype)
        strided = np.repeat(contiguous, 2, -1)[..., ::2]
        reset = np.random.default_rng(2).random(shape) < 0.1
        for x in (contiguous, strided, np.asfortranarray(contiguous), contiguous[::-1]):
            for options in ({}, {"reverse": True}, {"exclusive": True}, {"reset": reset, "reverse": True}):
                keywords = {"axis": axis, "dtype": out_dtype, "initial": 7, "return_final": True, **options}
                y, final = upsweep.cumulative_sum(x, **keywords)
                expected, expected_final = reference.cumulative_sum(x, **keywords)
                assert y.dtype == expected.dtype
                np.testing.assert_array_equal(y, expected)
                np.testing.assert_array_equal(final, expected_final)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64"])
def test_long_sums_of_integers(dtype, n_threads):
    """Lines in blocks, also of one number that is broadcast, with resets in some blocks."""
    starts = [70_000, 70_040, 89_999]
    for shape, axis in [((600_001,), 0), ((90_000, 3), 0), ((2, 300_000), 1)]:
        for x in (integers_of(shape, dtype), np.broadcast_to(integers_of((1,), dtype), shape)):
            y = upsweep.cumulative_sum(x, axis=axis, n_threads=n_threads)
            np.testing.assert_array_equal(y, np.cumsum(x, axis))
            y = upsweep.cumulative_sum(x, axis=axis, reverse=True, n_threads=n_threads)
            np.testing.assert_array_equal(y, np.flip(np.cumsum(np.flip(x, axis), axis), axis))
            reset = np.zeros(shape, bool)
            reset[(slice(None),) * axis + (starts,)] = True
            y = upsweep.cumulative_sum(x, axis=axis, reset=reset, n_threads=n_threads)
            parts = np.split(x, starts, axis)
            np.testing.assert_array_equal(y, np.concatenate([np.cumsum(part, axis) for part in parts], axis))


def test_a_sum_of_integers_in_place():
    for shape, axis, step in [((3, 1000), 1, 1), ((100, 33), 0, 1), ((300_000,), 0, -1)]:
        x = np.random.default_rng(2).integers(-(2**62), 2**62, shape)[::step]
        expected = np.cumsum(x, axis)
        upsweep.cumulative_sum(x, axis=axis, out=x)
        np.testing.assert_array_equal(x, expected)


def test_true_of_any_byte_counts_one():
    x = np.array([0, 1, 2, 255], np.uint8).view(bool)
    np.testing.assert_array_equal(upsweep.cumulative_sum(x), [0, 1, 2, 3])


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "uint16"])
def test_sums_of_integers_wrap_as_numpys(dtype):
    x = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 70_000, dtype, endpoint=True)
    np.testing.assert_array_equal(upsweep.cumulative_sum(x), np.cumsum(x))
    np.testing.assert_array_equal(upsweep.cumulative_sum(x, dtype=dtype), np.cumsum(x, dtype=dtype))


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "complex64", "float16"])
def test_dtype_of_a_sum(dtype):
    x = np.arange(-50, 50, dtype=np.int16).reshape(4, 25)
    y = check("cumulative_sum", x, dtype=dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.cumsum(x, axis=1, dtype=dtype))


def test_a_sum_of_integers_as_floats_does_not_wrap_first():
    x = np.full(4, 2**62)
    np.testing.assert_array_equal(upsweep.cumulative_sum(x, dtype=np.float64), 2.0**62 * np.arange(1, 5))


def test_large_integers_keep_every_bit():
    x = np.array([2**60 + 1, 1, 1, -(2**60)])
    np.testing.assert_array_equal(upsweep.cumulative_sum(x), [2**60 + 1, 2**60 + 2, 2**60 + 3, 3])
    y = upsweep.cumulative_sum(np.ones(3, np.int64), initial=2**60 + 1)
    np.testing.assert_array_equal(y, 2**60 + np.arange(2, 5))


@pytest.mark.parametrize("tokens", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("gates", DTYPES, ids=dtype_name)
def test_gates_and_tokens_meet_in_result_type(gates, tokens):
    a, b = random((3, 40), gates, 1, -0.7, 0.7), random((3, 40), tokens, 2)
    if {gates, tokens} == {np.dtype("float16"), BFLOAT16}:
        with pytest.raises(TypeError):
            upsweep.linear_recurrence(a, b)
    else:
        assert check("linear_recurrence", a, b).dtype == np.result_type(gates, tokens)


@pytest.mark.parametrize("gamma", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("x", DTYPES, ids=dtype_name)
def test_gamma_does_not_widen_the_result(x, gamma):
    values = random((3, 40), x, 2)
    y = check("discounted_cumsum", values, random((3, 1), gamma, 1, -0.7, 0.7))
    if gamma.kind == "c" and x.kind != "c":
        assert y.dtype == (np.complex128 if x == np.float64 else np.complex64)
    else:
        assert y.dtype == x


@pytest.mark.parametrize("gamma", [0.5, 1, True, np.float32(0.5), np.float64(0.5), np.int8(1), np.array(0.5)])
def test_scalar_gammas_of_all_sorts(gamma):
    for dtype in ("float16", "float32", "complex64", "int32"):
        x = np.arange(12).astype(dtype)
        y = check("discounted_cumsum", x, gamma)
        assert y.dtype == (np.float64 if dtype == "int32" else dtype)


def test_a_python_complex_gamma():
    assert check("discounted_cumsum", random(50, np.float32), 0.6 + 0.6j).dtype == np.complex64
    assert check("discounted_cumsum", random(50, np.float64), 0.6 + 0.6j).dtype == np.complex128
    assert check("discounted_cumsum", np.arange(50), 0.6 + 0.6j).dtype == np.complex128


def test_lists_and_scalars_are_arrays_too():
    np.testing.assert_array_equal(upsweep.cumulative_sum([1, 2, 3]), [1, 3, 6])
    np.testing.assert_array_equal(upsweep.discounted_cumsum([[1.0, 2.0]], [[0.5]]), [[1, 2.5]])
    np.testing.assert_array_equal(upsweep.linear_recurrence(0.5, [1.0, 2.0]), [1, 2.5])
    y = upsweep.linear_recurrence(0.5, np.ones(3, np.float32))
    assert y.dtype == np.float32


def test_initial_does_not_widen_the_result():
    for initial in (0.1, np.float64(0.1), np.array(0.1), 1):
        y, final = check("discounted_cumsum", random(9, np.float32), 0.5, initial=initial, return_final=True)
        assert y.dtype == final.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16], ids=dtype_name)
def test_an_overflowing_store_does_not_poison_the_state(dtype):
    large = 60000.0 if dtype == "float16" else 3e38
    x = np.array([large, large / 2, -large, 0.0]).astype(dtype)
    y = upsweep.cumulative_sum(x)
    assert np.isinf(y[1].astype(float))
    np.testing.assert_allclose(wide(y)[2:], float(wide(x)[1]), rtol=0.01)


def test_an_overflowing_float32_store_does_not_poison_the_state():
    y = upsweep.discounted_cumsum(np.array([3e38, 3e38, 0, 0], np.float32), 0.5 ** np.array([0.0, 0.0, 1, 1]))
    np.testing.assert_allclose(y, [3e38, np.inf, 3e38, 1.5e38], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_byte_orders_give_native_results(dtype):
    x = np.arange(5).astype(np.dtype(dtype).newbyteorder())
    for y in (upsweep.cumulative_sum(x), upsweep.discounted_cumsum(x, 0.5), upsweep.linear_recurrence(x, x)):
        assert y.dtype.isnative and y.dtype == dtype
