"""Hazard: axes, strides (negative, zero, odd), unaligned bases, Fortran order, foreign byte order."""

import numpy as np
import pytest
import upsweep
from helpers import INPUT_LAYOUTS, LAYOUTS, SCANS, check, operands, poisoned, random, relaid, same_bits
from numpy.lib.stride_tricks import as_strided


@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
@pytest.mark.parametrize("name", SCANS)
def test_inputs_in_any_layout(name, layout):
    for dtype in ("float16", "float32", "float64", "complex64"):
        for shape in [(37,), (5, 70), (3, 17, 6)]:
            arrays = operands(name, shape, dtype)
            moved = [relaid(a, layout) if isinstance(a, np.ndarray) else a for a in arrays]
            for axis in range(len(shape)):
                check(name, *moved, axis=axis)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCANS)
def test_outputs_in_any_layout(name, layout):
    arrays = operands(name, (19, 4, 33), np.float32)
    for axis in range(3):
        expected = getattr(upsweep, name)(*arrays, axis=axis)
        out = relaid(poisoned((19, 4, 33), np.float32), layout)
        assert getattr(upsweep, name)(*arrays, axis=axis, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("name", SCANS)
def test_an_output_between_other_numbers_leaves_them_alone(name):
    arrays = operands(name, (6, 50), np.float64)
    for axis in (0, 1):
        big = np.full((20, 120), 7.0)
        getattr(upsweep, name)(*arrays, axis=axis, out=big[1:13:2, 3:103:2])
        written = np.zeros(big.shape, bool)
        written[1:13:2, 3:103:2] = True
        assert (big[~written] == 7).all()
        assert not (big[written] == 7).any()


@pytest.mark.parametrize("shape", [(40, 64), (64, 1000, 3), (2, 300, 16), (2, 3, 4, 5, 6)])
def test_every_axis_counted_from_either_end(shape):
    gates, tokens = operands("linear_recurrence", shape, np.float32)
    for axis in range(len(shape)):
        y = check("linear_recurrence", gates, tokens, axis=axis)
        assert same_bits(y, upsweep.linear_recurrence(gates, tokens, axis=axis - len(shape)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_broadcast_operands_of_stride_zero(axis):
    shape = (4, 37, 5)
    for other in [(37, 1), (5,), (4, 1, 1), (1, 37, 5), (1, 1, 1), ()]:
        check("linear_recurrence", random(other, np.float32), random(shape, np.float32, 1), axis=axis)
        check("linear_recurrence", random(shape, np.float32), random(other, np.float32, 1), axis=axis)
        check("discounted_cumsum", random(shape, np.float32), random(other, np.float32, 1), axis=axis)
        check("discounted_cumsum", random(other, np.float32), random(shape, np.float32, 1), axis=axis)


def test_overlapping_windows_as_input():
    x = random(100)
    check("cumulative_sum", as_strided(x, (30, 40), (8, 8)))
    check("cumulative_sum", as_strided(x, (30, 40), (8, 8)), axis=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_more_columns_and_rows_than_a_tile(axis):
    gates, tokens = operands("linear_recurrence", (333, 517), np.float32)
    check("linear_recurrence", gates.T, tokens.T, axis=axis)
    check("linear_recurrence", gates[::2, ::-3], tokens[::2, ::-3], axis=axis)


def test_the_result_does_not_depend_on_the_order_of_gates_and_tokens_in_memory():
    gates, tokens = operands("linear_recurrence", (30, 200), np.float64)
    expected = upsweep.linear_recurrence(gates, tokens)
    y = upsweep.linear_recurrence(np.asfortranarray(gates), tokens)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


@pytest.mark.parametrize("offset", [0, 8, 16, 40])
@pytest.mark.parametrize("columns, dtype", [
    (32, "float32"), (75, "float16"), (128, "float32"), (300, "float64"), (511, "float32"), (1024, "float32"),
    (1040, "float64"), (5003, "float32"), (8192, "float16"),
])  # fmt: skip
def test_rows_that_go_past_the_cache(columns, dtype, offset):
    # From 16 MiB on: whole lines, rows that are short or a page apart through a buffer, the ends of others through
    # the cache; not in place.
    x = random((2**24 // (columns * np.dtype(dtype).itemsize) + 3, columns), dtype)
    memory = np.full(x.nbytes + 8192, 0x55, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    out = np.ndarray(x.shape, dtype, memory, start)
    upsweep.discounted_cumsum(x, 0.5, axis=0, out=out)
    assert (memory[:start] == 0x55).all() and (memory[start + x.nbytes :] == 0x55).all()
    assert same_bits(out, upsweep.discounted_cumsum(x, 0.5, axis=0, out=x))


@pytest.mark.parametrize("pitch", [4096, 4112, 4100])
@pytest.mark.parametrize("name", SCANS)
def test_pieces_of_rows_that_go_past_the_cache(name, pitch):
    """Of a wider array, a page apart and not, by one thread and by several, with all that belongs to a column."""
    arrays = operands(name, (2**24 // (4 * 3001) + 3, 3001), np.float32)
    options = {
        "axis": 0, "initial": random(3001, np.float32), "return_final": True, "exclusive": True,
        "reset": np.random.default_rng(1).random((len(arrays[0]), 3001)) < 0.01,
    }  # fmt: skip
    expected, state = getattr(upsweep, name)(*arrays, **options)
    for threads in (1, 3):
        wide = poisoned((len(expected), pitch), np.float32)
        before = wide.copy()
        _, final = getattr(upsweep, name)(*arrays, **options, out=wide[:, 5:3006], n_threads=threads)
        assert same_bits(np.ascontiguousarray(wide[:, 5:3006]), expected) and same_bits(final, state)
        wide[:, 5:3006] = before[:, 5:3006]
        assert same_bits(wide, before)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("columns", [65, 200, 900])
def test_blocks_of_whole_rows(name, columns):
    arrays = operands(name, (5000, columns), "float32")
    tokens = arrays[1 if name == "linear_recurrence" else 0]
    tokens[[7, 1800, 4000], [3, columns // 2, columns - 1]] = np.nan, np.inf, 1e30
    one = getattr(upsweep, name)(*arrays, axis=0, n_threads=1)
    assert same_bits(one, getattr(upsweep, name)(*arrays, axis=0, n_threads=3))
    for column in (0, 3, columns // 2, columns - 1):
        alone = [a[:, column] if isinstance(a, np.ndarray) else a for a in arrays]
        np.testing.assert_allclose(one[:, column], getattr(upsweep, name)(*alone), rtol=1e-6)
