"""Hazard: threads. The same bits for any number of them, and from several Python threads at once."""

import numpy as np
import pytest
import upsweep
from helpers import SCANS, in_threads, operands, random, same_bits

SHAPES = [((1, 1_000_000), -1), ((3, 200_000), -1), ((300_000, 5), 0), ((700, 1000), -1), ((1000, 700), 0)]
SHAPES += [((30, 500, 40), 1)]


def same_for_any_number_of_threads(name, *arrays, **keywords):
    function = getattr(upsweep, name)
    one = function(*arrays, n_threads=1, **keywords)
    for n_threads in (2, 3, None, 64):
        assert same_bits(function(*arrays, n_threads=n_threads, **keywords), one), n_threads


@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_plain(name, shape, axis):
    for dtype in (np.float32, np.float64):
        same_for_any_number_of_threads(name, *operands(name, shape, dtype, gamma=0.9999), axis=axis)
    same_for_any_number_of_threads(name, *operands(name, shape, np.float32, gamma=1.0), axis=axis, reverse=True)


@pytest.mark.parametrize("dtype", ["float16", "complex64", "int64"])
@pytest.mark.parametrize("name", SCANS)
def test_other_dtypes(name, dtype):
    for shape, axis in SHAPES[:3]:
        same_for_any_number_of_threads(name, *operands(name, shape, dtype), axis=axis)


@pytest.mark.parametrize("shape, axis", SHAPES[:3], ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_resets_initial_and_exclusive(name, shape, axis):
    arrays = operands(name, shape, np.float32)
    reset = np.random.default_rng(0).random(shape) < 1e-4
    state = random(np.delete(shape, axis), np.float64, 3)
    same_for_any_number_of_threads(name, *arrays, axis=axis, reset=reset, return_final=True)
    same_for_any_number_of_threads(name, *arrays, axis=axis, initial=state, exclusive=True, return_final=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", SCANS)
def test_a_bad_number_in_the_middle(name, bad):
    for shape, axis in SHAPES[:3]:
        arrays = operands(name, shape, np.float64)
        arrays[-1 if name == "linear_recurrence" else 0][tuple(n // 2 for n in shape)] = bad
        same_for_any_number_of_threads(name, *arrays, axis=axis)


@pytest.mark.parametrize("gate", [2.0, 1e-3, -1.0, 0.0])
def test_products_of_gates_that_overflow_or_underflow(gate):
    for shape, axis in SHAPES[:3]:
        x = random(shape, np.float64)
        same_for_any_number_of_threads("linear_recurrence", np.full(shape, gate), x, axis=axis)
        same_for_any_number_of_threads("discounted_cumsum", x, gate, axis=axis)


@pytest.mark.parametrize("window", [10, 1000, 100_000])
def test_windows(window):
    for shape, axis in SHAPES[:3]:
        x = random(shape, np.float32)
        same_for_any_number_of_threads("discounted_cumsum", x, 0.999, axis=axis, window=window)


def test_in_place_for_any_number_of_threads():
    x = random((3, 200_000), np.float32)
    expected = upsweep.discounted_cumsum(x, 0.999, n_threads=1)
    for n_threads in (1, 2, 3):
        y = x.copy()
        upsweep.discounted_cumsum(y, 0.999, out=y, n_threads=n_threads)
        assert same_bits(y, expected)


def test_from_run_to_run():
    gates, tokens = operands("linear_recurrence", (1, 1_000_000), np.float32)
    first = upsweep.linear_recurrence(gates, tokens)
    for _ in range(20):
        assert same_bits(upsweep.linear_recurrence(gates, tokens), first)


def test_two_python_threads_at_once():
    cases = [operands("linear_recurrence", (1, 400_000), np.float32, seed=seed) for seed in range(4)]
    expected = [upsweep.linear_recurrence(*case) for case in cases]
    wrong = []

    def work(which):
        for _ in range(8):
            if not same_bits(upsweep.linear_recurrence(*cases[which]), expected[which]):
                wrong.append(which)

    in_threads(work, *range(4))
    assert not wrong


@pytest.mark.parametrize(
    "n_threads, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)]
)
def test_numbers_of_threads_that_are_none(n_threads, error, fake_cuda):
    x, keys = np.ones(3), np.ones(3, int)
    for device in (None, "cuda"):
        for call in (
            lambda **operand: upsweep.cumulative_sum(x, **operand),
            lambda **operand: upsweep.cumulative_sum(x[:0], **operand),
            lambda **operand: upsweep.discounted_cumsum_carry(x, 0.5, **operand),
            lambda **operand: upsweep.bincount(keys, length=5, **operand),
            lambda **operand: upsweep.histogram(x, 3, range=(0, 2), **operand),
            lambda **operand: upsweep.histc(x, 3, 0, 2, **operand),
        ):
            with pytest.raises(error, match=r"^n_threads: "):
                call(n_threads=n_threads, device=device)
    assert not (fake_cuda.problems or fake_cuda.counts or fake_cuda.histograms)


def test_the_width_of_a_strip_does_not_show():
    # One column more than a tile holds; the schedule of the columns depends on the number of threads.
    x = np.random.default_rng(0).standard_normal((16, 300, 65)).astype(">f8")
    one = upsweep.discounted_cumsum(x, 0.9, axis=1, n_threads=1)
    assert one.tobytes() == upsweep.discounted_cumsum(x, 0.9, axis=1, n_threads=3).tobytes()
