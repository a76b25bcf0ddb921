"""Hazard: blocks of a user-defined scan that together give another result than the whole."""

import numpy as np
import pytest
import upsweep
from helpers import random, split_at

CUTS = (0, 0, 1, 8, 8, 60)
UPDATES = {
    "affine": (lambda s, x: 0.9 * s + x, 0.5),
    "tanh": (lambda s, x: (np.tanh(s + x), s), 0.5),
    "two states": (lambda s, x: ((s[1], 0.5 * s[0] + x), (x, s[0])), (0.5, 1.0)),
    "nothing": (lambda s, x: (s + x, None), 0.5),
}


def items(value):
    return value if isinstance(value, tuple) else (value,)


def joined(results, axis):
    return tuple(np.concatenate(parts, axis) for parts in zip(*map(items, results)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", UPDATES)
def test_blocks_are_the_whole(name, reverse):
    update, init = UPDATES[name]
    for shape, axis in (((100,), 0), ((3, 100), 1), ((100, 3), 0), ((2, 100, 2), -2)):
        x = random(shape)
        before = (slice(None),) * (axis % x.ndim)
        parts = split_at(100, *CUTS)[:: -1 if reverse else 1]
        blocks = (x[(*before, part)] for part in parts)
        scan = upsweep.scan_blocks(upsweep.scan, update, init, blocks, axis=axis, reverse=reverse)
        results = list(scan)[:: -1 if reverse else 1]
        whole, final = upsweep.scan(update, init, x, axis=axis, reverse=reverse, return_final=True)
        if name == "nothing":
            assert results == [None] * len(parts) and whole is None
        else:
            for result, expected in zip(joined(results, axis), items(whole), strict=True):
                np.testing.assert_array_equal(result, expected)
        for result, expected in zip(items(scan.state), items(final), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_several_inputs():
    gates, tokens = random(100), random(100, seed=1)
    blocks = ((gates[i : i + 30], tokens[i : i + 30]) for i in range(0, 100, 30))
    result = np.concatenate(list(upsweep.scan_blocks(upsweep.scan, lambda s, x: x[0] * s + x[1], 0.0, blocks)))
    np.testing.assert_allclose(
        result, upsweep.scan(lambda s, x: x[0] * s + x[1], 0.0, (gates, tokens)), rtol=1e-12
    )


def test_states_are_not_rounded_between_blocks():
    x = np.full(4000, 1 / 3, np.float16)
    update, init = lambda s, x: s + x, np.float16(0)
    blocks = (x[i : i + 1] for i in range(x.size))
    whole = upsweep.scan(update, init, x)
    scan = upsweep.scan_blocks(upsweep.scan, update, init, blocks)
    result = np.concatenate(list(scan))
    assert result.dtype == whole.dtype == scan.state.dtype == np.float16
    np.testing.assert_array_equal(result, whole)


def test_what_is_refused():
    update = UPDATES["affine"][0]
    with pytest.raises(TypeError, match=r"arrays: scan takes 3 \(update, init, xs\), got 2"):
        upsweep.scan_blocks(upsweep.scan, update, iter([[1.0]]))
    with pytest.raises(TypeError, match="xs: expected an iterable of blocks, got numpy"):
        upsweep.scan_blocks(upsweep.scan, update, 0.0, np.ones(3))
    for name in ("initial", "reset", "out", "length"):
        with pytest.raises(TypeError, match=f"keywords: scan takes no {name} with blocks"):
            upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([[1.0]]), **{name: 1})
    with pytest.raises(ValueError, match=r"a block with a state of shape \(2,\) follows those of \(3,\)"):
        list(upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([np.ones((5, 3)), np.ones((5, 2))])))
    with pytest.raises(TypeError, match="a block whose outputs and states are float64, float64 follows"):
        list(upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([np.ones(3, np.float32), np.ones(3)])))
    with pytest.raises(TypeError, match="update: expected a function"):
        list(upsweep.scan_blocks(upsweep.scan, 3, 0.0, iter([np.ones(3)])))
