"""Hazard: lengths around vector, tile and block sizes, and numbers of rows around 16-bit limits."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, check, operands, random, sequential
from upsweep.testing import assert_scan_close

LENGTHS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 127, 129]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SCANS)
def test_short_lengths_on_either_axis(name, dtype):
    for length in LENGTHS:
        check(name, *operands(name, (length,), dtype))
        check(name, *operands(name, (3, length), dtype), reverse=True)
        check(name, *operands(name, (length, 5), dtype), axis=0)


@pytest.mark.parametrize("length", [4095, 4096, 4097])
@pytest.mark.parametrize("name", SCANS)
def test_lengths_around_a_block(name, length):
    check(name, *operands(name, (2, length), np.float32))
    check(name, *operands(name, (length, 3), np.float32), axis=0, reverse=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [32768, 65535, 65537, 300_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_lines_in_blocks(dtype, length, reverse):
    x, gates = random(length, dtype), random(length, dtype, 1, 0.9, 1.1)
    order = slice(None, None, -1) if reverse else slice(None)
    cases = [
        (upsweep.cumulative_sum(x, reverse=reverse), np.ones(length)),
        (upsweep.discounted_cumsum(x, 0.999, reverse=reverse), np.full(length, 0.999)),
        (upsweep.discounted_cumsum(x, -1.0, reverse=reverse), np.full(length, -1.0)),
        (upsweep.linear_recurrence(gates, x, reverse=reverse), gates),
    ]
    for y, multipliers in cases:
        expected = sequential(multipliers[order], x[order])
        scale = sequential(np.abs(multipliers[order]), np.abs(x[order]))
        assert y.dtype == dtype
        # Both sides add in float64 here, in different orders: 1e-12, not the promise's 1e-13.
        assert_scan_close(y[order], expected, scale, rtol=1e-12)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 255, 256, 257, 65535, 65536])
@pytest.mark.parametrize("name", SCANS)
def test_numbers_of_rows(name, rows):
    check(name, *operands(name, (rows, 3), np.float32))
    check(name, *operands(name, (3, rows), np.float32), axis=0)


def test_every_element_of_a_long_line_is_reached():
    # A length one above 2^24 is where a float32 index loses the last element.
    length = 2**24 + 1
    x = np.zeros(length, np.float32)
    x[0] = x[-1] = 1
    y = upsweep.discounted_cumsum_right(x, 1.0)
    assert y[0] == 2 and y[1] == 1 and y[-1] == 1
    y = upsweep.discounted_cumsum_left(x, 1.0)
    assert y[0] == 1 and y[-2] == 1 and y[-1] == 2


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
@pytest.mark.parametrize("name", SCANS)
def test_no_elements(name, shape):
    for axis in range(len(shape)):
        check(name, *operands(name, shape, np.float32), axis=axis, return_final=True)
