"""Hazard: blocks whose states follow from what each does, against the whole."""

import numpy as np
import pytest
import upsweep
from helpers import random, split_at

UPDATES = {
    "constant": (lambda s, x: 0.9 * s + x, 0.5),
    "gated": (lambda s, x: (0.5 + 0.5 * x) * s - x, 0.5),
    "two gated": (lambda s, x: (0.9 * s[0] - x * s[1], 0.5 * s[0] * x + x), (0.5, -1.0)),
    "leaking max": (lambda s, x: np.maximum(s - 0.01, x), 0.5),
    "max with resets": (lambda s, x: np.where(x > 0.9, -x, np.maximum(s - 0.01, x)), 0.5),
    "moving min": (lambda s, x: np.minimum(s + x, 1.0), 0.5),
    "logaddexp": (np.logaddexp, -1.0),
    "argmax": (lambda s, x: (np.where(s[0] < x, x, s[0]), np.where(s[0] < x, 2 * x, s[1])), (-np.inf, -1.0)),
}


def items(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", UPDATES)
def test_states_after_blocks(name, reverse):
    update, init = UPDATES[name]
    for shape, axis in (((100,), 0), ((3, 100), 1), ((100, 3), 0)):
        x = random(shape)
        before = (slice(None),) * axis
        parts = split_at(100, 0, 1, 8, 60)[:: -1 if reverse else 1]
        carries = [
            upsweep.scan.carry(update, init, x[(*before, part)], axis=axis, reverse=reverse) for part in parts
        ]
        final = upsweep.scan(update, init, x, axis=axis, reverse=reverse, return_final=True)[1]
        state, whole = init, carries[0]
        for carry in carries:
            state = carry.apply(state)
        for carry in carries[1:]:
            whole = upsweep.combine(whole, carry)
        for results in (state, whole.apply(init)):
            assert isinstance(results, tuple) == isinstance(final, tuple)
            for result, expected in zip(items(results), items(final), strict=True):
                assert result.dtype == np.float64
                np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def test_a_block_that_drops_the_state():
    update = UPDATES["max with resets"][0]
    carry = upsweep.scan.carry(update, 0.0, [0.0, 2.0, -3.0])
    assert [carry.apply(state) for state in (5.0, np.nan, np.inf, -np.inf)] == [-2.01] * 4
    assert upsweep.combine(upsweep.scan.carry(update, 0.0, [np.nan]), carry).apply(0.0) == -2.01


def test_what_is_refused():
    x = random(10)
    decay = UPDATES["constant"][0]
    a = upsweep.scan.carry(decay, 0.0, x)
    with pytest.raises(ValueError, match="update: the new state is neither affine in the state nor"):
        upsweep.scan.carry(lambda s, x: np.tanh(s + x), 0.0, x)
    with pytest.raises(ValueError, match="length: is needed"):
        upsweep.scan.carry(decay, 0.0, None)
    with pytest.raises(TypeError, match="state: expected one state, got a tuple of 2"):
        a.apply((0.0, 1.0))
    with pytest.raises(ValueError, match=r"state: shape \(3,\) does not broadcast to \(\)"):
        a.apply(np.zeros(3))
    with pytest.raises(ValueError, match=r"carry_b: has columns of shape \(3,\), and carry_a of \(\)"):
        upsweep.combine(a, upsweep.scan.carry(decay, 0.0, random((10, 3))))
    with pytest.raises(TypeError, match=r"carry_b: is max of float64, .*, and carry_a is affine of"):
        upsweep.combine(a, upsweep.scan.carry(np.maximum, 0.0, x))
    with pytest.raises(TypeError, match="carry_a: expected a Carry"):
        upsweep.combine(a, upsweep.cumulative_sum_carry([1.0]))


def test_dask_arrays_have_carries_of_their_blocks():
    da = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match=r"scan\.carry: takes arrays of numpy and cupy; of a dask"):
        upsweep.scan.carry(UPDATES["constant"][0], 0.0, da.zeros(3))
