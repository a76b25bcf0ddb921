"""Hazard: NaN and infinities in data, gates and gamma: after them all is lost, before them nothing."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, check, operands, random, same_bits, sequential
from upsweep import reference

POSITIONS = [0, 1, 31, 32, 5000, 65536, 149_999]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SCANS)
def test_after_it_all_is_lost_and_before_it_nothing(name, bad):
    arrays = operands(name, 150_000, np.float64, gamma=0.9999)
    clean = getattr(upsweep, name)(*arrays)
    which = len(arrays) - 1 if name == "linear_recurrence" else 0
    for position in POSITIONS:
        changed = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
        changed[which][position] = bad
        y = getattr(upsweep, name)(*changed)
        np.testing.assert_allclose(y[:position], clean[:position], rtol=1e-9, atol=1e-9)
        assert not np.isfinite(y[position:]).any()
        y = getattr(upsweep, name)(*changed, reverse=True)
        assert np.isfinite(y[position + 1 :]).all()
        assert not np.isfinite(y[: position + 1]).any()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", SCANS)
def test_other_rows_keep_their_bits(name, axis):
    arrays = operands(name, (70, 70), np.float32)
    clean = getattr(upsweep, name)(*arrays, axis=axis)
    which = len(arrays) - 1 if name == "linear_recurrence" else 0
    changed = list(arrays)
    changed[which] = arrays[which].copy()
    changed[which][33, 35] = np.nan
    y = getattr(upsweep, name)(*changed, axis=axis)
    lost = np.zeros((70, 70), bool)
    lost[(slice(33, None), 35) if axis == 0 else (33, slice(35, None))] = True
    np.testing.assert_array_equal(np.isnan(y), lost)
    assert same_bits(y[~lost], clean[~lost])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [100, 70_000])
def test_infinity_followed_by_zeros_is_as_in_the_loop(length, dtype):
    for gamma in (0.5, 1.0, 0.0, -0.5, 2.0):
        x = np.zeros(length, dtype)
        x[10] = np.inf
        y = upsweep.discounted_cumsum(x, gamma)
        np.testing.assert_array_equal(y, sequential(np.full(length, gamma), x))
        y = upsweep.linear_recurrence(np.full(length, gamma, dtype), x)
        np.testing.assert_array_equal(y, sequential(np.full(length, gamma), x))


@pytest.mark.parametrize("gamma", [0.0, -0.0, 1.0, -1.0, 1.5, -2.0, 1e30, 1e-30, 1e300, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_every_kind_of_gamma(dtype, gamma):
    if dtype == "float16" and abs(gamma) == 1e300:
        gamma = 1e30
    # Beyond float32's range the state of the float16 kernel may be infinite where the reference is finite
    for length in (1, 2, 33, 200):
        check("discounted_cumsum", random(length, dtype, 1, 0.5, 1.0), gamma)
        check("discounted_cumsum", random((length, 3), dtype, 1, 0.5, 1.0), gamma, axis=0, reverse=True)
        check("discounted_cumsum", random((2, length), dtype, 1, 0.5, 1.0), np.full((2, 1), gamma))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 1.5, -2.0, 1e30, 1e200, np.inf])
def test_zeros_stay_zero_whatever_gamma_does(gamma):
    length = 40_000
    y = upsweep.discounted_cumsum(np.zeros(length, np.float32), gamma)
    np.testing.assert_array_equal(y, sequential(np.full(length, gamma), np.zeros(length)))


@pytest.mark.parametrize("gate", [np.nan, np.inf, -np.inf, 1e300, -1e300])
def test_one_bad_gate(gate):
    length = 100_000
    tokens = random(length)
    for position in (1, 40, 65_536):
        gates = np.full(length, 0.5)
        gates[position] = gate
        tokens[position - 1] = 1.0
        expected = sequential(gates, tokens)
        y = upsweep.linear_recurrence(gates, tokens)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-12)


def test_an_infinite_gate_over_a_zero_state_is_nan_and_over_none_is_not():
    gates = np.array([np.inf, 1.0, np.inf, 1.0])
    y = upsweep.linear_recurrence(gates, np.zeros(4))
    np.testing.assert_array_equal(y, [0, 0, np.nan, np.nan])


@pytest.mark.parametrize("length", [1100, 70_000])
def test_products_of_gates_that_overflow_do_not_matter_over_zeros(length):
    y = upsweep.linear_recurrence(np.full(length, 2.0), np.zeros(length))
    np.testing.assert_array_equal(y, np.zeros(length))
    tokens = np.zeros(length)
    tokens[-1] = 3
    assert upsweep.linear_recurrence(np.full(length, 2.0), tokens)[-1] == 3
    assert upsweep.linear_recurrence(np.full((length, 4), 2.0), np.zeros((length, 4)), axis=0).any() == np.False_


def test_a_line_that_leaves_the_range_and_is_reset_comes_back():
    length = 50_000
    reset = np.zeros(length, bool)
    reset[25_000] = True
    x = np.ones(length)
    y = upsweep.discounted_cumsum(x, 2.0, reset=reset)
    assert np.isinf(y[24_999]) and y[25_000] == 1 and y[25_001] == 3
    assert np.isinf(y[-1])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", SCANS)
def test_complex_numbers(name, dtype):
    arrays = operands(name, (3, 90), dtype)
    arrays[-1 if name == "linear_recurrence" else 0][1, 40] = complex(1.0, np.inf)
    check(name, *arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_state_that_overflows_inside_a_vector_stays_infinite(dtype):
    # The products around it are harmless, so only its own lane shows it.
    gates = np.full(40, 1.0)
    tokens = np.zeros(40)
    tokens[0] = 1.0
    gates[1:12] = 1e30
    gates[12:23] = 1e-30
    y = upsweep.linear_recurrence(gates.astype(dtype), tokens.astype(dtype))
    assert np.isinf(y[12:]).all()
    y = upsweep.linear_recurrence(gates.astype(dtype), tokens.astype(dtype), axis=0, reset=np.zeros(40, bool))
    assert np.isinf(y[12:]).all()


COMPLEX_BAD = [complex(1.0, np.inf), complex(-np.inf, 2.0), complex(np.inf, np.inf), complex(0.0, np.nan)]


def in_parts(name, arrays, **keywords):
    """A scan of complex numbers under real factors: that of the real parts, and that of the imaginary parts."""
    which = len(arrays) - 1 if name == "linear_recurrence" else 0
    parts = []
    for part in ("real", "imag"):
        these = list(arrays)
        these[which] = getattr(arrays[which], part).copy()
        own = {k: getattr(np.asarray(v), part) if k == "initial" else v for k, v in keywords.items()}
        parts.append(getattr(upsweep, name)(*these, **own))
    return parts


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("bad", COMPLEX_BAD)
def test_complex_sums_are_numpys(bad, dtype):
    for shape, axis in [((200,), 0), ((40, 90), 1), ((90, 40), 0), ((3, 50, 4), 1), ((2, 70_000), 1)]:
        x = np.asarray(random(shape, dtype))
        x[(0,) * axis + (17,) + (0,) * (len(shape) - axis - 1)] = bad
        with np.errstate(all="ignore"):
            expected = np.cumsum(x, axis=axis, dtype=np.complex128)
        y, final = upsweep.cumulative_sum(x, axis=axis, return_final=True)
        for result, reference_result in ((y, expected), (final, expected.take(-1, axis))):
            for part in ("real", "imag"):
                np.testing.assert_allclose(
                    getattr(result, part), getattr(reference_result, part), rtol=1e-6, atol=1e-5
                )
        check("cumulative_sum", x, axis=axis, reverse=True)


@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["discounted_cumsum", "linear_recurrence"])
def test_a_real_factor_multiplies_the_parts_of_a_complex_state(name, dtype, window):
    if window and name == "linear_recurrence":
        return
    for shape, axis in [((300,), 0), ((40, 90), 1), ((90, 40), 0), ((3, 50, 4), 1)]:
        for bad in COMPLEX_BAD:
            x = np.asarray(random(shape, dtype))
            x[(0,) * axis + (17,) + (0,) * (len(shape) - axis - 1)] = bad
            reset = np.random.default_rng(5).random(shape) < 0.05
            for factor in (0.5, random(shape, np.float32, 1), random(shape, np.float64, 1)[..., ::-1], -2):
                if window and isinstance(factor, np.ndarray):
                    continue
                arrays = (factor, x) if name == "linear_recurrence" else (x, factor)
                keywords = {"axis": axis, "reset": reset} | ({"window": window} if window else {})
                y = getattr(upsweep, name)(*arrays, **keywords)
                assert y.dtype == (np.result_type(factor, dtype) if name == "linear_recurrence" else dtype)
                for result, expected in zip((y.real, y.imag), in_parts(name, arrays, **keywords)):
                    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
                check(name, *arrays, **keywords)


def test_an_infinite_initial_of_a_complex_sum_stays_in_its_part():
    y, final = upsweep.cumulative_sum(np.ones(3, complex), initial=complex(np.inf, 1.0), return_final=True)
    np.testing.assert_array_equal([*y.real, final.real], np.inf)
    np.testing.assert_array_equal([*y.imag, final.imag], 1)


@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan])
def test_a_real_factor_that_is_not_finite(factor):
    y = upsweep.discounted_cumsum(np.array([1 + 2j, 0, 1j]), factor)
    np.testing.assert_array_equal(y.real[1:], [factor, factor * factor])
    np.testing.assert_array_equal(y.imag[1:], [2 * factor, factor * factor * 2 + 1])
    check("linear_recurrence", [1.0, factor, 1.0], np.array([1 + 2j, 0, 1j]))


@pytest.mark.parametrize("name", SCANS)
def test_carries_of_complex_blocks_with_real_factors(name):
    arrays = [np.abs(a) if isinstance(a, np.ndarray) else a for a in operands(name, (3, 60), np.float64)]
    which = len(arrays) - 1 if name == "linear_recurrence" else 0
    arrays[which] = arrays[which] + 1j
    arrays[which][0, 3] = complex(np.inf, 1)
    whole = getattr(upsweep, name)(*arrays)[:, -1]
    first, second = (
        getattr(upsweep, f"{name}_carry")(*(a[:, part] if isinstance(a, np.ndarray) else a for a in arrays))
        for part in (slice(20), slice(20, None))
    )
    assert first.multiplier.dtype == np.float64
    for final in (upsweep.combine(first, second).value, second.apply(first.apply(None))):
        np.testing.assert_allclose(final.real, whole.real, rtol=1e-12)
        np.testing.assert_allclose(final.imag, whole.imag, rtol=1e-12)
    expected = getattr(reference, f"{name}_carry")(*arrays)
    result = upsweep.combine(first, second)
    assert result.multiplier.dtype == expected.multiplier.dtype
    np.testing.assert_allclose(result.value.imag, expected.value.imag, rtol=1e-12)


HUGE = 1.7e308


def overflowing(kind, length=200_000):
    """Gates, tokens and resets whose state overflows inside a block and would be back at its end."""
    gates, tokens, reset = np.ones(length), np.zeros(length), np.zeros(length, bool)
    for at in {0, min(70_000, length - 60), length - 60}:  # the first block, one in between, and the last
        if kind in ("sum", "reset"):
            # Neighbours overflow together; lanes, and tiles of lanes, that are summed on their own do not.
            tokens[at : at + 2], tokens[at + 32 : at + 34] = HUGE, -HUGE
        elif kind == "gates":
            tokens[at] = 1e300
            gates[at + 3 : at + 7], gates[at + 20 : at + 24] = 1e3, 1e-3
        elif kind == "product":  # no gate is remarkable, only their product is
            tokens[at] = 1e3
            gates[at + 4 : at + 16], gates[at + 21 : at + 33] = 2.0**90, 2.0**-90
        if kind == "reset":
            reset[at + 36] = reset[at + 50] = True
            tokens[at + 50] = HUGE / 4
    if kind.startswith("carried"):  # the block does nothing remarkable to a state of 0
        tokens[length // 20], at = HUGE / 2, length // 2
        if kind == "carried sum":
            tokens[at], tokens[at + 20] = HUGE, -HUGE
        else:
            gates[at : at + 4], gates[at + 20 : at + 24] = 1e3, 1e-3
    return gates, tokens, reset


def expected_states(gates, tokens, reset):
    parts = np.split(np.arange(len(tokens)), np.flatnonzero(reset))
    return np.concatenate([sequential(gates[part], tokens[part]) for part in parts])


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("layout", ["lines", "reverse", "columns", "strided", "swapped"])
@pytest.mark.parametrize("kind", ["sum", "carried sum", "reset", "gates", "carried gates", "product"])
def test_a_state_that_overflows_inside_a_block_stays_infinite(kind, layout, n_threads):
    gates, tokens, reset = overflowing(kind)
    expected = expected_states(gates, tokens, reset)
    assert not np.isfinite(expected).all()
    keywords = {"n_threads": n_threads, "axis": 0}
    if layout == "reverse":
        gates, tokens, reset = (a[::-1].copy() for a in (gates, tokens, reset))
        keywords["reverse"] = True
    elif layout == "columns":
        gates, tokens, reset = (np.stack([a] * 5, axis=1) for a in (gates, tokens, reset))
    elif layout == "strided":
        gates, tokens, reset = (np.repeat(a, 2)[::2] for a in (gates, tokens, reset))
    elif layout == "swapped":
        gates, tokens = (a.astype(">f8") for a in (gates, tokens))
    if kind == "reset":
        keywords["reset"] = reset
    calls = [upsweep.linear_recurrence(gates, tokens, return_final=True, **keywords)]
    if kind in ("sum", "carried sum", "reset"):
        calls += [
            upsweep.discounted_cumsum(tokens, 1.0, return_final=True, **keywords),
            upsweep.cumulative_sum(tokens, return_final=True, **keywords),
        ]
    for y, final in calls:
        y = y[::-1] if layout == "reverse" else y.T if layout == "columns" else y
        np.testing.assert_allclose(y, np.broadcast_to(expected, y.shape), rtol=1e-12)
        np.testing.assert_allclose(final, np.broadcast_to(expected[-1], final.shape), rtol=1e-12)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("kind", ["sum", "carried sum", "reset", "gates", "carried gates", "product"])
def test_a_column_that_overflows_inside_a_block_leaves_the_others_alone(kind, n_threads):
    gates, tokens, reset = overflowing(kind, 20_000)
    expected = expected_states(gates, tokens, reset)
    tokens = np.stack([np.ones_like(tokens)] * 69 + [tokens], axis=1)  # one of 70
    y = upsweep.linear_recurrence(gates[:, None], tokens, axis=0, reset=reset[:, None], n_threads=n_threads)
    np.testing.assert_allclose(y[:, -1], expected, rtol=1e-12)
    others = expected_states(gates, tokens[:, 0], reset)
    np.testing.assert_allclose(y[:, :-1], np.broadcast_to(others[:, None], (20_000, 69)), rtol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "carried sum", "gates", "carried gates", "product"])
def test_the_carry_of_a_block_that_overflows_inside_is_infinite(kind):
    gates, tokens, _ = overflowing(kind, 300)
    expected = sequential(gates, tokens)[-1]
    assert not np.isfinite(expected)
    np.testing.assert_equal(upsweep.linear_recurrence_carry(gates, tokens).value, expected)
    np.testing.assert_equal(
        upsweep.linear_recurrence_carry(gates[::-1], tokens[::-1], reverse=True).value, expected
    )
    columns = upsweep.linear_recurrence_carry(np.stack([gates] * 3, 1), np.stack([tokens] * 3, 1), axis=0)
    np.testing.assert_equal(columns.value, np.full(3, expected))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gates_around_one_give_the_states_of_the_loop(dtype):
    # Products that grow and shrink by many orders of magnitude within a block, and never overflow.
    rng = np.random.default_rng(0)
    gates = np.exp2(rng.integers(-2, 3, 300_000).astype(dtype))
    tokens = rng.random(300_000).astype(dtype)
    walk = 0
    for t, gate in enumerate(gates):
        if abs(walk + np.log2(float(gate))) > 100:
            gates[t] = 1 / gate
        walk += np.log2(float(gates[t]))
    expected = sequential(gates, tokens)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            upsweep.linear_recurrence(gates.astype("f8"), tokens.astype("f8")), expected, rtol=1e-10
        )
        y = upsweep.linear_recurrence(gates, tokens)
        np.testing.assert_allclose(y, expected.astype(dtype), rtol=max(1e-10, np.finfo(dtype).eps))


@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("kind", ["sum", "carried sum", "gates", "carried gates", "product"])
def test_the_carries_of_many_lines_that_overflow_inside_leave_the_others_alone(kind, rows):
    gates, tokens, _ = overflowing(kind, 100_000)
    expected = np.full(rows, sequential(gates, tokens)[-1])
    gates, tokens = np.tile(gates, (rows, 1)), np.tile(tokens, (rows, 1))
    gates[2], tokens[2] = 0.5, 1e-3
    expected[2] = 2e-3
    assert np.isinf(np.delete(expected, 2)).all()
    down = gates.T.copy(), tokens.T.copy()
    np.testing.assert_allclose(upsweep.linear_recurrence_carry(gates, tokens).value, expected, rtol=1e-12)
    np.testing.assert_allclose(upsweep.linear_recurrence_carry(*down, axis=0).value, expected, rtol=1e-12)


@pytest.mark.parametrize("window", [3, 50, 500])
def test_windows_of_complex_sums_that_overflow_do_so_in_their_part(window):
    x = np.zeros((2, 3000), complex)
    x[:, 100:102], x[:, 140:142], x[:, 500], x[0, 1000:1003] = HUGE, -HUGE, complex(0, np.inf), complex(0, HUGE)
    with np.errstate(invalid="ignore"):
        y = upsweep.discounted_cumsum(x, 1.0, window=window)
        for part in ("real", "imag"):
            result, expected = (
                getattr(y, part),
                upsweep.discounted_cumsum(getattr(x, part).copy(), 1.0, window=window),
            )
            np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_runs_of_infinities_and_nans_are_as_in_the_loop(dtype, reverse):
    rng = np.random.default_rng(5)
    for length in (9, 40, 300, 1100):
        for kind in range(12):
            gates, x = rng.uniform(0.5, 1, (4, length)), rng.standard_normal((4, length))
            if kind % 2:
                gates *= rng.choice([-1, 1], gates.shape)
            if kind % 3 == 1:
                gates[rng.random(gates.shape) < 0.02] = 0
            for value, share in ((np.inf, 0.02), (-np.inf, 0.02 * (kind % 4 == 0)), (np.nan, 0.002 * (kind > 8))):
                x[rng.random(x.shape) < share] = value
            x[0] = np.where(rng.random(length) < 0.5, np.inf, x[0])
            reset = rng.random(gates.shape) < (0.01 if kind % 3 == 2 else 0)
            gates, x = gates.astype(dtype), x.astype(dtype)
            for exclusive in (False, True):
                y = upsweep.linear_recurrence(gates, x, reset=reset, reverse=reverse, exclusive=exclusive)
                with np.errstate(all="ignore"):
                    expected = reference.linear_recurrence(
                        gates, x, reset=reset, reverse=reverse, exclusive=exclusive
                    )
                bad = ~np.isfinite(expected)
                np.testing.assert_array_equal(y[bad], expected[bad])
                assert np.isfinite(y[~bad]).all()


@pytest.mark.parametrize("gamma", [0.9, -0.9])
def test_an_infinity_keeps_its_sign_under_one_gamma(gamma):
    x = random((3, 1000), np.float32)
    x[0, 3], x[1, 500], x[2, 10], x[2, 900] = np.inf, -np.inf, np.inf, -np.inf * np.sign(gamma)
    with np.errstate(all="ignore"):
        expected = reference.discounted_cumsum(x, gamma)
    y = upsweep.discounted_cumsum(x, gamma)
    bad = ~np.isfinite(expected)
    np.testing.assert_array_equal(y[bad], expected[bad])
    assert np.isfinite(y[~bad]).all()
