"""Hazard: memory that the user brings: it has the same bits as new memory has, also where it is an input."""

import numpy as np
import pytest
import upsweep
from helpers import random, same_bits


def leak(s, x):
    return 0.9 * s + 0.1 * x


def two(s, x):
    return (0.9 * s[0] - 0.2 * s[1] + x, 0.3 * s[0] + 0.8 * s[1]), (s[0] + x, s[1] > x)


CASES = [((0, 3), 0), ((7,), 0), ((40, 37), 0), ((37, 130), 1), ((3, 50, 17), 1), ((9000,), 0), ((2, 300_001), 1)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_out_has_the_bits_of_a_new_array(shape, axis, reverse):
    for dtype in (np.float16, np.float32, np.float64):
        x = random(shape, dtype)
        expected, last = upsweep.scan(leak, 0.5, x, axis=axis, reverse=reverse, return_final=True)
        for out in (np.full_like(x, np.nan), np.full((*shape, 2), np.nan, dtype)[..., 1], x.copy()):
            xs = out.copy() if np.isnan(out).any() else x
            xs[...] = x
            y, final = upsweep.scan(leak, 0.5, xs, axis=axis, reverse=reverse, return_final=True, out=out)
            assert y is out
            assert same_bits(y, expected)
            assert same_bits(final, last)
            np.testing.assert_array_equal(xs, x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_in_place(shape, axis, reverse):
    for dtype in (np.float16, np.float32, np.float64):
        x = random(shape, dtype)
        x.reshape(-1)[x.size // 2 : x.size // 2 + 1] = np.inf  # parallel in time, blocks are read once more then
        expected = upsweep.scan(leak, 0.5, x, axis=axis, reverse=reverse)
        assert upsweep.scan(leak, 0.5, x, axis=axis, reverse=reverse, out=x) is x
        assert same_bits(x, expected)


def test_several_outputs_into_several_arrays():
    for shape in ((50, 40), (20_000,)):
        x = random(shape)
        expected = upsweep.scan(two, (0.5, -1.0), x)
        out = (x, np.empty(shape, bool))
        assert upsweep.scan(two, (0.5, -1.0), x, out=out) is out
        for got, other in zip(out, expected):
            assert same_bits(got, other)


def test_a_decorated_update_takes_it():
    x, out = random((30, 8)), np.empty((30, 8))
    scanned = upsweep.scan(leak)
    assert scanned(0.0, x, out=out) is out
    assert same_bits(out, scanned(0.0, x))


def test_what_does_not_fit_is_refused_and_untouched():
    x = random((20, 4))
    frozen = np.zeros((20, 4))
    frozen.flags.writeable = False
    buffer = np.zeros((21, 4))
    buffer[:20] = x
    for out, error, words in (
        (np.zeros((20, 5)), ValueError, r"out: expected shape \(20, 4\)"),
        (np.zeros((20, 4), np.float32), TypeError, "out: expected dtype float64"),
        ([[0.0] * 4] * 20, TypeError, "out: expected a numpy.ndarray"),
        (frozen, ValueError, "out: is read-only"),
        (np.broadcast_to(np.zeros(4), (20, 4)), ValueError, "out: is read-only"),
    ):
        with pytest.raises(error, match=words):
            upsweep.scan(leak, 0.0, x, out=out)
    with pytest.raises(ValueError, match="out: overlaps xs in memory without being the same array"):
        upsweep.scan(leak, 0.0, buffer[:20], out=buffer[1:])
    np.testing.assert_array_equal(buffer[:20], x)
    with pytest.raises(TypeError, match="out: expected a tuple of 2 arrays"):
        upsweep.scan(two, (0.0, 0.0), x, out=x)
    with pytest.raises(ValueError, match=r"out\[1\]: expected shape"):
        upsweep.scan(two, (0.0, 0.0), x, out=(x, np.zeros(3, bool)))
    with pytest.raises(ValueError, match="out: the update has no output"):
        upsweep.scan(lambda s, x: (s + x, None), 0.0, x, out=x)
    memory = np.zeros((20, 4))
    with pytest.raises(ValueError, match=r"out\[1\]: overlaps out\[0\]"):
        upsweep.scan(lambda s, x: (s + x, (s, x)), 0.0, x, out=(memory, memory))
