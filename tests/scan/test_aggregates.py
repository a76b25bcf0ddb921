"""Hazard: the pieces of a scan. A line cut anywhere, its carries combined in any grouping, is the whole."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, dtype_name, operands, random, same_bits, split_at
from upsweep import reference


def close(a, b):
    for result, expected in zip(a, b):
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)


def carry(name, *arrays, **keywords):
    return getattr(upsweep, f"{name}_carry")(*arrays, **keywords)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype("int32"), np.dtype("bool")], ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_against_the_twin(name, dtype, reverse):
    for shape, axis in [((1,), 0), ((50,), 0), ((4, 300), 1), ((300, 4), 0), ((3, 20, 5), 1), ((3, 0), 1)]:
        arrays = operands(name, shape, np.float64 if dtype.kind in "ib" else dtype)
        if dtype.kind in "ib":
            arrays = [(2 * a).astype(dtype) if isinstance(a, np.ndarray) else a for a in arrays]
        for reset in (None, np.random.default_rng(3).random(shape) < 0.01):
            result = carry(name, *arrays, axis=axis, reverse=reverse, reset=reset)
            expected = getattr(reference, f"{name}_carry")(*arrays, axis=axis, reverse=reverse, reset=reset)
            assert isinstance(result, upsweep.Carry)
            close(result, expected)
            for part, oracle in zip(result, expected):
                assert part.shape == shape[:axis] + shape[axis + 1 :] and part.dtype == oracle.dtype


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_split_at_every_point(name, reverse):
    arrays = operands(name, (3, 13))
    reset = np.zeros((3, 13), bool)
    reset[1, [0, 4]] = reset[2, 12] = True
    whole = carry(name, *arrays, reset=reset, reverse=reverse)
    _, final = getattr(upsweep, name)(
        *arrays, reset=reset, reverse=reverse, initial=[1.0, 2, 3], return_final=True
    )
    np.testing.assert_allclose(whole.apply([1.0, 2.0, 3.0]), final, rtol=1e-13)
    for cut in range(1, 13):
        halves = [
            carry(
                name, *(a[:, part] if isinstance(a, np.ndarray) else a for a in arrays),
                reset=reset[:, part], reverse=reverse,
            )
            for part in split_at(13, cut)
        ]  # fmt: skip
        first, second = halves[::-1] if reverse else halves
        close(upsweep.combine(first, second), whole)
        np.testing.assert_allclose(second.apply(first.apply([1.0, 2.0, 3.0])), final, rtol=1e-13)
        np.testing.assert_allclose(second.apply(first.apply(None)), whole.value, rtol=1e-12, atol=1e-13)


def test_any_grouping_gives_the_same():
    gates, tokens = operands("linear_recurrence", (5, 40))
    reset = np.random.default_rng(0).random((5, 40)) < 0.05
    a, b, c, d = (
        upsweep.linear_recurrence_carry(gates[:, part], tokens[:, part], reset=reset[:, part])
        for part in split_at(40, 3, 20, 33)
    )
    combine = upsweep.combine
    whole = upsweep.linear_recurrence_carry(gates, tokens, reset=reset)
    close(combine(combine(combine(a, b), c), d), whole)
    close(combine(a, combine(b, combine(c, d))), whole)
    close(combine(combine(a, b), combine(c, d)), whole)


@pytest.mark.parametrize("name", SCANS)
def test_value_is_the_final_state_and_the_multiplier_is_what_initial_meets(name):
    for shape, axis in [((1, 300_000), 1), ((300_000, 3), 0), ((70, 5000), 1)]:
        arrays = operands(name, shape, np.float64, gamma=0.99999)
        result = carry(name, *arrays, axis=axis)
        _, final = getattr(upsweep, name)(*arrays, axis=axis, return_final=True)
        np.testing.assert_allclose(result.value, final, rtol=1e-9, atol=1e-11)
        if name == "discounted_cumsum":
            np.testing.assert_allclose(result.multiplier, 0.99999 ** float(shape[axis]), rtol=1e-9)
        for n_threads in (1, 2, 3):
            assert all(map(same_bits, carry(name, *arrays, axis=axis, n_threads=n_threads), result))


def test_the_first_gate_is_in_the_multiplier_and_not_in_the_value():
    result = upsweep.linear_recurrence_carry(np.array([3.0, 2.0]), np.array([1.0, 10.0]))
    assert result.multiplier == 6 and result.value == 12 and not result.reset
    result = upsweep.linear_recurrence_carry(np.array([np.nan, 2.0]), np.array([1.0, 10.0]))
    assert np.isnan(result.multiplier) and result.value == 12


def test_after_a_reset_no_state_passes_not_even_nan():
    gates, reset = np.array([np.nan, np.inf, 2.0]), np.array([False, True, False])
    result = upsweep.linear_recurrence_carry(gates, np.ones(3), reset=reset)
    assert result.reset and result.multiplier == 0 and result.value == 3
    for state in (np.nan, np.inf, 1e300):
        assert result.apply(state) == 3
    before = upsweep.linear_recurrence_carry(np.array([np.inf]), np.array([np.nan]))
    both = upsweep.combine(before, result)
    assert both.reset and both.multiplier == 0 and both.value == 3


@pytest.mark.parametrize(
    "dtype, wide", [("int8", "int64"), ("bool", "int64"), ("uint8", "uint64"), ("float16", "float64")]
)
def test_dtypes_of_the_parts(dtype, wide):
    result = upsweep.cumulative_sum_carry(np.ones((2, 3), dtype))
    assert result.value.dtype == result.multiplier.dtype == wide
    assert result.reset.dtype == bool
    assert (result.value == 3).all() and (result.multiplier == 1).all()


def test_integer_carries_are_exact_and_wrap():
    x = np.array([2**62, 2**62, 1, 5])
    a, b = upsweep.cumulative_sum_carry(x[:2]), upsweep.cumulative_sum_carry(x[2:])
    assert upsweep.combine(a, b).value == np.cumsum(x)[-1]


def test_a_scan_in_blocks_from_carries():
    gates, tokens = operands("linear_recurrence", (4, 10_000))
    parts = split_at(10_000, 1000, 2500, 9999)
    carries = [upsweep.linear_recurrence_carry(gates[:, p], tokens[:, p]) for p in parts]
    state, results = None, []
    for part, block in zip(parts, carries):
        results.append(upsweep.linear_recurrence(gates[:, part], tokens[:, part], initial=state))
        state = block.apply(state)
    expected = upsweep.linear_recurrence(gates, tokens)
    np.testing.assert_allclose(np.concatenate(results, axis=1), expected, rtol=1e-11, atol=1e-13)


def test_half_precision_is_carried_in_float64():
    x = random(5000, np.float16)
    exact = x.astype(float).sum()
    np.testing.assert_allclose(
        upsweep.cumulative_sum_carry(x).value, exact, rtol=1e-6, atol=1e-6 * np.abs(x).sum()
    )


@pytest.mark.parametrize("bad", [None, 3, (1, 2, 3), "abc"])
def test_combine_wants_carries(bad):
    fine = upsweep.cumulative_sum_carry(np.ones(3))
    with pytest.raises(TypeError, match=r"\b(carry_)?a\b"):
        upsweep.combine(bad, fine)
    with pytest.raises(TypeError, match=r"\b(carry_)?b\b"):
        upsweep.combine(fine, bad)


def test_a_state_that_the_carry_cannot_hold_is_refused():
    real, whole = upsweep.cumulative_sum_carry(np.ones(3)), upsweep.cumulative_sum_carry(np.ones(3, int))
    for carry_, state in ((real, 1j), (real, np.zeros(2, np.complex64)), (whole, 0.5), (whole, 1j)):
        with pytest.raises(TypeError, match="state"):
            carry_.apply(state)
    for state in ("abc", [None], np.ma.ones(3)):
        with pytest.raises(TypeError, match="state"):
            real.apply(state)
    with pytest.raises(ValueError, match="state"):
        upsweep.cumulative_sum_carry(np.ones((2, 3))).apply(np.ones(5))


def test_a_state_that_the_carry_can_hold_takes_its_dtype():
    cases = [(np.ones(3), 1, 4.0), (np.ones(3), np.float32(0.5), 3.5), (np.ones(3, complex), 0.5, 3.5 + 0j)]
    cases += [(np.ones(3, np.uint8), np.int64(-1), np.uint64(2)), (np.ones(3, int), True, 4)]
    for x, state, expected in cases:
        result = upsweep.cumulative_sum_carry(x)
        assert result.apply(state) == expected and result.apply(state).dtype == result.value.dtype


def test_carries_of_different_kinds_combine_in_what_holds_both():
    real, imaginary = upsweep.cumulative_sum_carry(np.ones(3)), upsweep.cumulative_sum_carry(np.full(2, 1j))
    for first, second in ((real, imaginary), (imaginary, real)):
        both = upsweep.combine(first, second)
        assert both.value == 3 + 2j and both.multiplier.dtype == np.float64
    signed = upsweep.cumulative_sum_carry(np.array([-(2**60) - 1]))
    unsigned = upsweep.cumulative_sum_carry(np.array([2**60 + 2], np.uint64))
    assert upsweep.combine(signed, unsigned).value == 1
    rotation = upsweep.linear_recurrence_carry([complex(0.0, np.inf)], [0.0])
    half = upsweep.linear_recurrence_carry([0.5], [0.0])
    for product in (upsweep.combine(rotation, half).multiplier, upsweep.combine(half, rotation).multiplier):
        assert product.imag == np.inf


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_many_carries_of_which_one_overflows(dtype, axis):
    shape = (2000, 90) if axis else (90, 2000)
    gates, tokens = operands("linear_recurrence", shape, dtype)
    clean = upsweep.linear_recurrence_carry(gates, tokens, axis=axis)
    gates = gates.copy()
    gates[(1000, slice(3, 60)) if axis else (slice(3, 60), 1000)] = 1e30
    result = upsweep.linear_recurrence_carry(gates, tokens, axis=axis)
    assert not np.isfinite(result.value[1000])
    others = np.arange(2000) != 1000
    np.testing.assert_allclose(result.value[others], clean.value[others], rtol=1e-11, atol=1e-13)
    if axis:  # columns are reduced in groups
        assert same_bits(result.value[others], clean.value[others])
    for n_threads in (1, 2, 3):
        again = upsweep.linear_recurrence_carry(gates, tokens, axis=axis, n_threads=n_threads)
        assert all(map(same_bits, again, result))
