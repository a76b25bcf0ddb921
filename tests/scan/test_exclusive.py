"""Hazard: exclusive scans (the state before each step) and the extra element of include_initial."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, check, dtype_name, operands, random


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_exclusive_against_the_twin(name, dtype, reverse):
    for shape, axis in [((1,), 0), ((45,), 0), ((3, 300), 1), ((300, 3), 0), ((2, 40, 5), 1)]:
        arrays = operands(name, shape, dtype)
        check(name, *arrays, axis=axis, exclusive=True, reverse=reverse)
        check(name, *arrays, axis=axis, exclusive=True, reverse=reverse, initial=1.5, return_final=True)
        reset = np.random.default_rng(1).random(shape) < 0.2
        check(
            name,
            *arrays,
            axis=axis,
            exclusive=True,
            reverse=reverse,
            initial=1.5,
            reset=reset,
            return_final=True,
        )


@pytest.mark.parametrize("name", SCANS)
def test_exclusive_is_the_inclusive_scan_one_step_later(name):
    arrays = operands(name, 100_000, np.float64)
    inclusive, final = getattr(upsweep, name)(*arrays, return_final=True)
    exclusive, same = getattr(upsweep, name)(*arrays, exclusive=True, return_final=True)
    assert exclusive[0] == 0 and final == same
    np.testing.assert_allclose(exclusive[1:], inclusive[:-1], rtol=1e-10, atol=1e-12)


def test_exclusive_is_zero_where_reset():
    reset = np.array([True, False, True, False])
    y = upsweep.cumulative_sum([1.0, 2, 4, 8], exclusive=True, reset=reset, initial=100.0)
    np.testing.assert_array_equal(y, [0, 1, 0, 4])


def test_exclusive_does_not_see_a_nan_in_its_last_step():
    y = upsweep.discounted_cumsum([1.0, 2.0, np.nan], 0.5, exclusive=True)
    np.testing.assert_array_equal(y, [0, 1, 2.5])


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype("int16"), np.dtype("bool")], ids=dtype_name)
def test_include_initial_against_the_twin(dtype):
    for shape, axis in [((0,), 0), ((1,), 0), ((45,), 0), ((3, 300), 1), ((300, 3), 0), ((2, 40, 5), 1)]:
        x = np.ones(shape, dtype) if dtype.kind in "ib" else random(shape, dtype)
        for reverse in (False, True):
            y = check("cumulative_sum", x, axis=axis, include_initial=True, reverse=reverse)
            assert y.shape[axis] == shape[axis] + 1
            check(
                "cumulative_sum",
                x,
                axis=axis,
                include_initial=True,
                initial=3,
                reverse=reverse,
                return_final=True,
            )


def test_include_initial_stands_where_the_scan_begins():
    np.testing.assert_array_equal(upsweep.cumulative_sum([1.0, 2.0], include_initial=True), [0, 1, 3])
    np.testing.assert_array_equal(upsweep.cumulative_sum([1.0, 2.0], include_initial=True, initial=5), [5, 6, 8])
    np.testing.assert_array_equal(
        upsweep.cumulative_sum([1.0, 2.0], include_initial=True, reverse=True), [3, 2, 0]
    )
    if hasattr(np, "cumulative_sum"):
        x = random((3, 9))
        np.testing.assert_allclose(
            upsweep.cumulative_sum(x, axis=1, include_initial=True),
            np.cumulative_sum(x, axis=1, include_initial=True),
        )


def test_include_initial_and_exclusive_are_two_answers_to_one_question():
    with pytest.raises(ValueError, match="include_initial"):
        upsweep.cumulative_sum(np.ones(3), include_initial=True, exclusive=True)


def test_include_initial_wants_an_output_one_longer():
    out = np.full((2, 6), np.nan)
    assert upsweep.cumulative_sum(np.ones((2, 5)), include_initial=True, out=out) is out
    np.testing.assert_array_equal(out, [[0, 1, 2, 3, 4, 5]] * 2)
    with pytest.raises(ValueError, match="out"):
        upsweep.cumulative_sum(np.ones((2, 5)), include_initial=True, out=np.empty((2, 5)))


def test_nothing_before_the_first_step_is_a_plain_zero():
    for n in (2, 8, 40):
        assert not np.signbit(upsweep.cumulative_sum(np.ones(n), exclusive=True)[0])
        assert not np.signbit(upsweep.linear_recurrence(np.ones(n) / 2, np.ones(n), exclusive=True)[0])
