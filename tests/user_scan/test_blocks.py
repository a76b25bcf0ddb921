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
    "a count and a mean": (lambda s, x: ((s[0] + 1, 0.5 * s[1] + x), s[0]), (0, 0.5)),
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


def test_resets_of_blocks():
    x, drops = random((50, 3)), random((50, 3)) > 1
    blocks, flags = ([a[i : i + 7] for i in range(0, 50, 7)] for a in (x, drops))
    update = lambda s, x: 0.5 * s + x  # noqa: E731
    scan = upsweep.scan_blocks(upsweep.scan, update, 1.0, iter(blocks), reset=iter(flags))
    whole = upsweep.scan(update, 1.0, x, reset=drops)
    np.testing.assert_allclose(np.concatenate(list(scan)), whole, rtol=1e-12)
    fixed = upsweep.scan_blocks(upsweep.scan, update, 1.0, iter([x[:5], x[5:10]]), reset=drops[:5])
    np.testing.assert_allclose(
        np.concatenate(list(fixed)), upsweep.scan(update, 1.0, x[:10], reset=[*drops[:5], *drops[:5]]), rtol=1e-12
    )


def test_what_is_refused():
    update = UPDATES["affine"][0]
    with pytest.raises(TypeError, match=r"arrays: scan takes 3 \(update, init, xs\), got 2"):
        upsweep.scan_blocks(upsweep.scan, update, iter([[1.0]]))
    with pytest.raises(TypeError, match="xs: expected an iterable of blocks, got numpy"):
        upsweep.scan_blocks(upsweep.scan, update, 0.0, np.ones(3))
    with pytest.raises(TypeError, match="takes no initial with blocks; init is the state before the first block"):
        upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([[1.0]]), initial=1.0)
    with pytest.raises(TypeError, match=r"expected one of cumulative_sum, .*, got ewm_mean; of blocks") as caught:
        upsweep.scan_blocks(upsweep.ewm_mean, iter([[1.0]]), alpha=0.25)
    remedy = str(caught.value).partition("scan_blocks(scan, ")[2][:-1]
    names = {"d": 0.75, "blocks": iter([[1.0, 2.0], [4.0]])}
    update, init, blocks = eval(f"({remedy})", names)
    ys = upsweep.scan_blocks(upsweep.scan, update, init, blocks)
    np.testing.assert_allclose(np.concatenate(list(ys)), upsweep.ewm_mean([1.0, 2.0, 4.0], alpha=0.25))
    update = UPDATES["affine"][0]
    with pytest.raises(ValueError, match="reset: ended after 1 blocks, while xs goes on"):
        list(upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([[1.0], [2.0]]), reset=iter([[True]])))
    for name in ("initial", "out", "length"):
        with pytest.raises(TypeError, match=f"keywords: scan takes no {name} with blocks"):
            upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([[1.0]]), **{name: 1})
    with pytest.raises(ValueError, match=r"a block with a state of shape \(2,\) follows those of \(3,\)"):
        list(upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([np.ones((5, 3)), np.ones((5, 2))])))
    with pytest.raises(TypeError, match="a block whose outputs and states are float64, float64 follows"):
        list(upsweep.scan_blocks(upsweep.scan, update, 0.0, iter([np.ones(3, np.float32), np.ones(3)])))
    with pytest.raises(TypeError, match="update: expected a function"):
        list(upsweep.scan_blocks(upsweep.scan, 3, 0.0, iter([np.ones(3)])))
