"""Hazard: resets, which drop the state by a choice, so that nothing survives them, not even a NaN."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, check, dtype_name, operands, random, same_bits


def resets(shape, seed=5, share=0.1):
    return np.random.default_rng(seed).random(shape) < share


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_random_resets(name, dtype, reverse):
    for shape in [(1,), (67,), (4, 300)]:
        check(name, *operands(name, shape, dtype), reset=resets(shape), reverse=reverse)
    check(name, *operands(name, (70, 9), dtype), axis=0, reset=resets((70, 9)), reverse=reverse)
    check(name, *operands(name, (3, 50, 4), dtype), axis=1, reset=resets((3, 50, 4)), reverse=reverse)


@pytest.mark.parametrize("name", SCANS)
def test_resets_at_both_ends_everywhere_and_nowhere(name):
    arrays = operands(name, (2, 257), np.float32)
    x = arrays[-1] if name == "linear_recurrence" else arrays[0]
    ends = np.zeros(257, bool)
    ends[[0, -1]] = True
    for reverse in (False, True):
        check(name, *arrays, reset=ends, reverse=reverse)
        assert same_bits(getattr(upsweep, name)(*arrays, reset=np.ones(257, bool), reverse=reverse), x)
        plain = getattr(upsweep, name)(*arrays, reverse=reverse)
        never = getattr(upsweep, name)(*arrays, reset=np.zeros((2, 257), bool), reverse=reverse)
        np.testing.assert_allclose(never, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(1,), (40, 1), (1, 5), (3, 1, 1), (3, 40, 5), ()])
def test_reset_broadcasts(shape):
    check("discounted_cumsum", random((3, 40, 5)), 0.9, axis=1, reset=resets(shape, share=0.5))


@pytest.mark.parametrize("name", SCANS)
def test_a_reset_stops_nan_and_infinity(name):
    for bad in (np.nan, np.inf):
        for length in (100, 60_000):
            arrays = [np.array(a) if isinstance(a, np.ndarray) else a for a in operands(name, length)]
            arrays[-1 if name == "linear_recurrence" else 0][length // 4] = bad
            reset = np.zeros(length, bool)
            reset[length // 2] = True
            y = getattr(upsweep, name)(*arrays, reset=reset)
            assert np.isfinite(y[: length // 4]).all()
            assert not np.isfinite(y[length // 4 : length // 2]).any()
            assert np.isfinite(y[length // 2 :]).all()


def test_the_gate_of_a_reset_step_is_not_read():
    gates = np.array([np.nan, 0.5, np.nan, 0.5, np.inf])
    reset = np.array([False, False, True, False, True])
    y = upsweep.linear_recurrence(gates, np.ones(5), reset=reset)
    np.testing.assert_array_equal(y, [1, 1.5, 1, 1.5, 1])


def test_a_reset_in_reverse_drops_what_comes_from_the_right():
    reset = np.array([False, True, False, False])
    np.testing.assert_array_equal(upsweep.cumulative_sum([1.0, 2, 4, 8], reset=reset, reverse=True), [3, 2, 12, 8])


@pytest.mark.parametrize("name", SCANS)
def test_a_reset_drops_initial(name):
    arrays = operands(name, (3, 20))
    x = arrays[-1] if name == "linear_recurrence" else arrays[0]
    reset = np.zeros((3, 20), bool)
    reset[1, 0] = True
    y = check(name, *arrays, reset=reset, initial=np.full(3, 1e6))
    assert y[1, 0] == x[1, 0] and abs(y[0, 0]) > 1e3 * abs(x[0, 0])


def test_packed_sequences_are_scanned_one_by_one():
    lengths = [1, 5, 0, 1000, 37, 4096]
    pieces = [random(n, np.float32, n) for n in lengths]
    reset = np.zeros(sum(lengths), bool)
    reset[np.cumsum([0, *lengths[:-1]])] = True
    y = upsweep.discounted_cumsum(np.concatenate(pieces), 0.99, reset=reset)
    expected = np.concatenate([upsweep.discounted_cumsum(piece, 0.99) for piece in pieces])
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)


def test_reset_in_odd_layouts():
    reset = resets((200, 60))
    x = random((60, 100))
    check("discounted_cumsum", x, 0.9, reset=reset[::2].T)
    check("discounted_cumsum", x, 0.9, axis=0, reset=reset[::-2].T[::-1])
    frozen = reset[:100].T.copy()
    frozen.flags.writeable = False
    check("discounted_cumsum", x, 0.9, reset=frozen)


def test_a_flag_of_any_value_resets():
    flags = np.zeros(300, np.uint8)
    flags[150] = 2
    assert upsweep.cumulative_sum(np.ones(300), reset=flags.view(bool))[-1] == 150
