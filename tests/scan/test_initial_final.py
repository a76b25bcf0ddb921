"""Hazard: the state that goes in and the state that comes out, and calls chained through them."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, DTYPES, SCANS, check, dtype_name, operands, random, split_at


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_against_the_twin(name, dtype, reverse):
    for shape, axis in [((50,), 0), ((4, 300), 1), ((300, 4), 0), ((3, 20, 5), 1), ((3, 20, 5), 0)]:
        state = shape[:axis] + shape[axis + 1 :]
        for initial in (random(state, dtype, 9), np.ones((1,) * len(state)), 2.5):
            check(
                name,
                *operands(name, shape, dtype),
                axis=axis,
                initial=initial,
                return_final=True,
                reverse=reverse,
            )


@pytest.mark.parametrize("shape, axis", [((5, 0), 1), ((0, 5), 0), ((0,), 0), ((2, 0, 3), 1)])
@pytest.mark.parametrize("name", SCANS)
def test_length_zero_returns_initial_or_zeros(name, shape, axis):
    arrays = operands(name, shape, np.float32)
    state = shape[:axis] + shape[axis + 1 :]
    y, final = getattr(upsweep, name)(*arrays, axis=axis, return_final=True)
    assert y.shape == shape and final.shape == state and final.dtype == np.float32
    assert not final.any()
    initial = random(state, np.float32)
    _, final = getattr(upsweep, name)(*arrays, axis=axis, return_final=True, initial=initial)
    np.testing.assert_array_equal(final, initial)


def test_the_final_state_of_a_line_is_an_array_without_axes():
    y, final = upsweep.discounted_cumsum(np.ones(3), 0.5, return_final=True)
    assert isinstance(final, np.ndarray) and final.shape == () and final == y[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_dtype_of_the_final_state(dtype):
    _, final = upsweep.discounted_cumsum(random((2, 9), dtype), 0.5, return_final=True)
    assert final.dtype == (np.float32 if dtype in (np.dtype("float16"), BFLOAT16) else dtype)


@pytest.mark.parametrize("name", SCANS)
def test_the_final_state_does_not_alias_the_result(name):
    arrays = operands(name, (3, 9))
    y, final = getattr(upsweep, name)(*arrays, return_final=True)
    assert not np.shares_memory(y, final)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_streaming_in_pieces(name, reverse):
    arrays = operands(name, (3, 1000))
    whole = getattr(upsweep, name)(*arrays, reverse=reverse)
    pieces = split_at(1000, 1, 2, 500, 500, 999)
    state, results = None, []
    for piece in pieces[::-1] if reverse else pieces:
        part = [a[:, piece] if isinstance(a, np.ndarray) else a for a in arrays]
        # An empty piece hands a zero on where there is no state yet: start with a piece that is not empty.
        y, state = getattr(upsweep, name)(*part, initial=state, reverse=reverse, return_final=True)
        results.append(y)
    np.testing.assert_allclose(
        np.concatenate(results[::-1] if reverse else results, axis=1), whole, rtol=1e-12, atol=1e-13
    )


def test_the_first_gate_is_read_with_initial_and_not_without():
    gates, tokens = np.array([np.nan, 1.0]), np.array([1.0, 2.0])
    np.testing.assert_array_equal(upsweep.linear_recurrence(gates, tokens), [1, 3])
    np.testing.assert_array_equal(upsweep.linear_recurrence(gates, tokens, initial=0.0), [np.nan, np.nan])
    np.testing.assert_array_equal(upsweep.linear_recurrence(gates[::-1], tokens, reverse=True), [3, 2])


def test_half_precision_keeps_a_state_that_the_result_cannot_hold():
    y, final = upsweep.cumulative_sum(np.full(4, 60000, np.float16), return_final=True)
    np.testing.assert_array_equal(y, np.array([60000, np.inf, np.inf, np.inf], np.float16))
    assert final == 240000 and final.dtype == np.float32
    y, final = upsweep.cumulative_sum(np.full(4, -60000, np.float16), initial=final, return_final=True)
    assert final == 0 and y[-1] == 0


def test_initial_is_read_only_and_strided():
    initial = random((6, 8))[::2, ::-2]
    initial.flags.writeable = False
    check("discounted_cumsum", random((3, 50, 4)), 0.9, axis=1, initial=initial)
    check("discounted_cumsum", random((3, 50, 4)), 0.9, axis=1, initial=np.broadcast_to(1.5, (3, 4)))
    check("discounted_cumsum", random((3, 50, 4)), 0.9, axis=1, initial=[1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("name", SCANS)
def test_long_lines_with_initial_and_final(name):
    arrays = operands(name, 200_000, np.float64, gamma=0.99999)
    whole = getattr(upsweep, name)(*arrays)
    half = [a[100_000:] if isinstance(a, np.ndarray) else a for a in arrays]
    y, final = getattr(upsweep, name)(*half, initial=whole[99_999], return_final=True)
    np.testing.assert_allclose(y, whole[100_000:], rtol=1e-9, atol=1e-11)
    assert final == y[-1]
