"""Hazard: float16 and bfloat16 are scanned in lanes of float32, which rounds more and overflows sooner."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, SCANS, check, dtype_name, operands, random, same_bits, sequential, wide
from upsweep._backends import cpu
from upsweep._backends.cpu import user_scan
from upsweep.testing import assert_scan_close

HALVES = [np.dtype("float16"), BFLOAT16]
BOTH = pytest.mark.parametrize("dtype", HALVES, ids=dtype_name)
DIRECTIONS = pytest.mark.parametrize("reverse", [False, True])
# Around a tile, a few tiles together, a block and its parts, for every width of a vector.
LENGTHS = [63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 512, 513, 640, 1100]


def in_order(array, reverse):
    return array[..., ::-1] if reverse else array


def assert_promise(y, gates, tokens):
    exact, scale = sequential(gates, tokens), sequential(np.abs(gates), np.abs(tokens))
    with np.errstate(invalid="ignore"):
        assert_scan_close(y, exact, scale, rtol=1e-6)
    return exact


@BOTH
@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.5, 0.99, 0.9999, 1.0, -0.999, 1.0005, 1.5])
def test_the_promise_on_a_million_steps_with_one_gamma(dtype, gamma):
    x = random(1_000_000, dtype)
    exact = assert_promise(upsweep.discounted_cumsum(x, gamma), np.full(x.size, gamma), wide(x))
    if gamma == 0.9999:  # rounded once, but for next to nothing
        once = exact.astype(dtype)
        assert (wide(upsweep.discounted_cumsum(x, gamma)) == wide(once)).mean() > 0.99
    if gamma == 1.0:
        assert_promise(upsweep.cumulative_sum(x), np.ones(x.size), wide(x))


@BOTH
@pytest.mark.parametrize("low, high", [(0.0, 1.0), (0.99, 1.0), (-1.0, 1.0), (1e-4, 1e-2), (0.5, 1.5)])
def test_the_promise_on_a_million_steps_with_gates(dtype, low, high):
    x, gates = random(1_000_000, dtype), random(1_000_000, dtype, 1, low, high)
    assert_promise(upsweep.linear_recurrence(gates, x), wide(gates), wide(x))


@BOTH
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rounding_that_always_goes_the_same_way_does_not_add_up(dtype, sign):
    # The number below one, and one and a bit: products and sums that need every bit, equal in every tile.
    below = np.nextafter(dtype.type(1), dtype.type(0))
    x = np.full(100_000, 1.2345678, dtype)
    x[1::2] *= dtype.type(sign)
    gates = np.full(x.size, below, dtype)
    for odd in (below, dtype.type(1), dtype.type(0.7)):
        gates[1::2] = odd
        assert_promise(upsweep.linear_recurrence(gates, x), wide(gates), wide(x))
    for gamma in (float(below), 0.99991, 1.0 - 2.0**-24, 1.0 - 2.0**-26, 1.0 + 2.0**-26):
        assert_promise(upsweep.discounted_cumsum(x, gamma), np.full(x.size, gamma), wide(x))


@BOTH
@pytest.mark.parametrize("name", SCANS)
def test_lengths_around_tiles_in_every_way(name, dtype):
    for length in LENGTHS:
        arrays = operands(name, (3, length), dtype)
        reset = np.random.default_rng(length).random((3, length)) < 0.02
        reset[1, 0] = reset[2, -1] = True
        for reverse in (False, True):
            for exclusive in (False, True):
                keywords = {"reverse": reverse, "exclusive": exclusive, "return_final": True}
                check(name, *arrays, **keywords)
                check(name, *arrays, **keywords, reset=reset, initial=np.array([0.5, -3.0, 0.1]))


@BOTH
@DIRECTIONS
@pytest.mark.parametrize("name", SCANS)
def test_the_final_state_is_the_last_one_written(name, reverse, dtype):
    for length in (*LENGTHS, 200_000):
        y, final = getattr(upsweep, name)(*operands(name, length, dtype), reverse=reverse, return_final=True)
        assert same_bits(np.asarray(final).astype(dtype), np.asarray(y[0 if reverse else -1]))


@DIRECTIONS
@pytest.mark.parametrize("at", [*range(24), 100, 125, 127, 128, 511, 700])
def test_a_sum_of_bfloat16_that_leaves_float32_and_comes_back(at, reverse):
    x = np.zeros(1000, BFLOAT16)
    x[at : at + 4] = np.array([3e38, 3e38, -3e38, -3e38], BFLOAT16)
    expected = sequential(np.ones(1000), wide(x))
    assert np.abs(expected).max() > 5e38
    with np.errstate(over="ignore"):
        expected = expected.astype(BFLOAT16)
    result = in_order(x, reverse).copy()
    for y in (
        upsweep.cumulative_sum(result, reverse=reverse),
        upsweep.discounted_cumsum(result, 1.0, reverse=reverse),
        upsweep.linear_recurrence(np.ones(1000, BFLOAT16), result, reverse=reverse),
    ):
        np.testing.assert_array_equal(wide(in_order(y, reverse)), wide(expected))


@DIRECTIONS
@pytest.mark.parametrize("at", [*range(20), 120, 250, 600])
@pytest.mark.parametrize(
    "dtype, token, up, down, n",
    [
        (BFLOAT16, 1e-30, 1e30, 1e-30, 2),  # a product of two gates is beyond float32, no state is
        (BFLOAT16, 1e-30, 1e35, 1e-35, 2),  # a state is
        (np.dtype("float16"), 2.0**-24, 2.0**15, 2.0**-15, 12),
        (BFLOAT16, 1e30, 1e-25, 1e25, 2),  # a product of two gates vanishes in float32, no state does
    ],
    ids=["product", "state", "float16", "vanishing"],
)
def test_gates_that_leave_float32_and_come_back(dtype, token, up, down, n, at, reverse):
    gates, tokens = np.full(1000, 0.5, dtype), np.zeros(1000, dtype)
    tokens[at] = token
    gates[at + 1 : at + 1 + n], gates[at + 1 + n : at + 1 + 2 * n] = up, down
    expected = sequential(wide(gates), wide(tokens))
    assert np.isfinite(expected).all()
    y = upsweep.linear_recurrence(
        in_order(gates, reverse).copy(), in_order(tokens, reverse).copy(), reverse=reverse
    )
    with np.errstate(over="ignore"):
        rounded = wide(expected.astype(dtype))
    smallest = float(np.finfo(np.float32).smallest_normal)
    rounded[np.abs(expected) < smallest] = 0
    result = wide(in_order(y, reverse)).copy()
    result[np.abs(expected) < smallest] = 0
    np.testing.assert_array_equal(result, rounded)


@DIRECTIONS
@pytest.mark.parametrize("at", range(128, 160))
@pytest.mark.parametrize("gap", range(1, 17))
def test_a_carried_state_that_leaves_float32_inside_a_run(gap, at, reverse):
    # What the run does on its own is harmless; so is the state after the tile.
    later = at + gap
    x = np.zeros(512, BFLOAT16)
    x[[at, later, later + 1, later + 17]] = np.array([3e38, 3e38, -3e38, -3e38], BFLOAT16)
    gates = np.ones(512, BFLOAT16)
    expected = sequential(gates, wide(x))
    y = upsweep.cumulative_sum(in_order(x, reverse).copy(), reverse=reverse)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(wide(in_order(y, reverse)), wide(expected.astype(BFLOAT16)))
    x[[at, later, later + 1]] = np.array([1e30, 0, 0], BFLOAT16)
    gates[[later, later + 3]] = np.array([2.0**40, 2.0**-40], BFLOAT16)
    expected = sequential(wide(gates), wide(x))
    y = upsweep.linear_recurrence(in_order(gates, reverse).copy(), in_order(x, reverse).copy(), reverse=reverse)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(wide(in_order(y, reverse)), wide(expected.astype(BFLOAT16)))


@pytest.mark.parametrize("at", range(128, 145))
def test_products_of_gates_that_vanish_in_float32_under_a_large_state(at):
    gates, x = np.ones(512, BFLOAT16), np.zeros(512, BFLOAT16)
    x[at], gates[at + 1], gates[at + 2] = 1e38, 1e-25, 1e-20
    y = upsweep.linear_recurrence(gates, x)
    expected = sequential(wide(gates), wide(x))
    assert 1e-8 < expected[-1] < 1e-6
    np.testing.assert_array_equal(wide(y), wide(expected.astype(BFLOAT16)))


def test_a_state_beyond_float32_that_decays_within_one_run():
    exact = sequential(np.full(513, 3.1e-5), np.concatenate([[1e39], np.zeros(512)]))[1:]
    assert 100 < exact[7] < 10_000
    y = upsweep.discounted_cumsum(np.zeros(512, np.float16), 3.1e-5, initial=1e39)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, exact.astype(np.float16))


@BOTH
@pytest.mark.parametrize("initial", [1e60, -1e300, 3e38, 1e30])
def test_an_initial_state_beyond_float32(initial, dtype):
    x = random(3000, dtype)
    for gamma in (0.5, 0.9, -0.7):
        y = upsweep.discounted_cumsum(x, gamma, initial=initial)
        gates = np.full(3001, gamma)
        tokens = np.concatenate([[initial], wide(x)])
        exact, scale = sequential(gates, tokens)[1:], sequential(np.abs(gates), np.abs(tokens))[1:]
        assert_scan_close(y, exact, scale, rtol=1e-6)
        same = np.full(3000, gamma).astype(dtype)
        y = upsweep.linear_recurrence(same, x, initial=initial)
        gates[1:] = wide(same)
        exact, scale = sequential(gates, tokens)[1:], sequential(np.abs(gates), np.abs(tokens))[1:]
        assert_scan_close(y, exact, scale, rtol=1e-6)


@BOTH
@DIRECTIONS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SCANS)
def test_a_bad_number_anywhere_loses_what_follows_and_nothing_else(name, bad, reverse, dtype):
    arrays = [in_order(a, reverse) if isinstance(a, np.ndarray) else a for a in operands(name, 1200, dtype)]
    which = -1 if name == "linear_recurrence" else 0
    clean = in_order(getattr(upsweep, name)(*arrays, reverse=reverse), reverse)
    for position in (*range(0, 140, 3), 500, 511, 512, 1199):
        changed = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
        in_order(changed[which], reverse)[position] = bad
        y = in_order(getattr(upsweep, name)(*changed, reverse=reverse), reverse)
        assert not np.isfinite(wide(y[position:])).any()
        np.testing.assert_allclose(wide(y[:position]), wide(clean[:position]), rtol=0.01, atol=1e-6)


@BOTH
def test_a_bad_gate_under_a_reset_is_not_read(dtype):
    gates, x = operands("linear_recurrence", 1200, dtype)
    reset = np.zeros(1200, bool)
    reset[[0, 77, 128, 700]] = True
    expected = upsweep.linear_recurrence(gates, x, reset=reset)
    bad = gates.copy()
    bad[reset] = np.nan
    assert same_bits(upsweep.linear_recurrence(bad, x, reset=reset), expected)
    assert same_bits(upsweep.linear_recurrence(bad, x, reset=reset, exclusive=True)[reset], np.zeros(4, dtype))
    x[100] = np.nan  # and a reset stops what it finds
    y = upsweep.linear_recurrence(gates, x, reset=reset)
    assert np.isnan(wide(y[100:128])).all() and np.isfinite(wide(np.delete(y, range(100, 128)))).all()


@BOTH
@pytest.mark.parametrize("name", SCANS)
def test_the_same_bits_for_any_number_of_threads(name, dtype):
    for shape in [(1, 1_000_000), (3, 300_000), (50, 3000)]:
        arrays = operands(name, shape, dtype, gamma=0.9999)
        ends = np.random.default_rng(0).random(shape) < 1e-4
        for keywords in ({}, {"reverse": True}, {"reset": ends}, {"exclusive": True, "initial": 0.3}):
            one = getattr(upsweep, name)(*arrays, n_threads=1, return_final=True, **keywords)
            for n_threads in (2, 3):
                again = getattr(upsweep, name)(*arrays, n_threads=n_threads, return_final=True, **keywords)
                assert same_bits(again, one)
            result = arrays[-1 if name == "linear_recurrence" else 0].copy()
            operand = [result if a is arrays[-1 if name == "linear_recurrence" else 0] else a for a in arrays]
            assert same_bits(getattr(upsweep, name)(*operand, out=result, n_threads=2, **keywords), one[0])


@BOTH
def test_gates_above_one_and_zero_in_blocks(dtype):
    # What a block does to a state is found in lanes of float32 only where no gate is above one.
    x, gates = random(700_000, dtype), random(700_000, dtype, 1, 0.9, 1.0)
    for position in (0, 1, 100_000, 400_001):
        for gate in (0.0, -0.0, 1.0, 1.5, -1.25):
            changed = gates.copy()
            changed[position] = gate
            assert_promise(upsweep.linear_recurrence(changed, x, n_threads=2), wide(changed), wide(x))


@BOTH
@pytest.mark.parametrize("window", [1, 5, 130, 1000])
def test_windows(window, dtype):
    check("discounted_cumsum", random((2, 1500), dtype), 0.99, window=window)


def test_every_float16_comes_through_a_buffer_unchanged():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for x in (np.repeat(every, 2)[::2], every.astype(">f2"), every[::-1][::-1][:, None][:, 0]):
        y = upsweep.cumulative_sum(x[:, None], axis=1)[:, 0]
        np.testing.assert_array_equal(y, every)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(every))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_rounding_to_float16(dtype):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(dtype)
    between = (halves[1:] + halves[:-1]) / 2
    nearest = [np.nextafter(between, side, dtype=dtype) for side in (np.inf, 0)]
    special = np.array([65519.9, 65520, 1e9, 1e30, np.inf, np.nan])
    values = np.concatenate([halves, between, *nearest, special]).astype(dtype)
    values = np.concatenate([values, -values])
    written = np.empty((2, values.size), np.float16)[:, ::-1]
    cpu.scans.convert(np.stack([values, values]), written)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(written, np.stack([expected, expected]))
    back = np.empty_like(values)
    cpu.scans.convert(written[0], back)
    np.testing.assert_array_equal(back, expected.astype(dtype))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 40), (40, 3), (7, 1, 50), (50, 33, 2), (2, 3, 4, 5)])
def test_conversion_of_every_layout(shape):
    layouts = [
        np.ndarray.copy,
        lambda array: np.repeat(array, 3, axis=-1)[..., 1::3] if array.ndim else array,
        lambda array: array.T.copy().T,
        lambda array: np.flip(np.flip(array).copy()),
        lambda array: np.moveaxis(np.moveaxis(array, 0, -1).copy(), -1, 0) if array.ndim else array,
    ]
    x = np.asarray(random(shape), np.float16)
    for source in (np.asarray(layout(x.astype(dtype))) for layout in layouts for dtype in (">f2", "f4")):
        for target in (np.asarray(layout(np.zeros(shape, np.float16))) for layout in layouts):
            user_scan.convert(source, target)
            np.testing.assert_array_equal(target, x)
