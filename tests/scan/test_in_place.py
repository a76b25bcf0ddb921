"""Hazard: out is one of the inputs, exactly (allowed) or in part (refused before any work)."""

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, dtype_name, operands, random, same_bits

SHAPES = [((100,), 0), ((4, 300), 1), ((300, 4), 0), ((5, 60, 7), 1), ((1, 150_000), 1), ((150_000, 2), 0)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_out_is_an_input(name, dtype, reverse):
    for shape, axis in SHAPES:
        for which in range(2 if name == "linear_recurrence" else 1):
            for exclusive in (False, True):
                arrays = list(operands(name, shape, dtype))
                keywords = {"axis": axis, "reverse": reverse, "exclusive": exclusive}
                expected = getattr(upsweep, name)(*arrays, **keywords)
                assert getattr(upsweep, name)(*arrays, **keywords, out=arrays[which]) is arrays[which]
                assert same_bits(arrays[which], expected)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("columns", [3, 7, 8, 9, 64, 65, 130])
def test_out_is_an_array_of_integer_columns(columns, exclusive):
    x = np.random.default_rng(columns).integers(-(2**62), 2**62, (50, columns))
    reset = np.random.default_rng(0).random(x.shape) < 0.1
    before, state = np.empty_like(x), np.zeros(columns, x.dtype)
    after = np.empty_like(x)
    for t in range(len(x)):
        state = before[t] = np.where(reset[t], 0, state)
        state = after[t] = state + x[t]
    upsweep.cumulative_sum(x, axis=0, reset=reset, exclusive=exclusive, out=x)
    np.testing.assert_array_equal(x, before if exclusive else after)


def test_gates_and_tokens_and_out_are_one_array():
    x = random((3, 500), low=0.0)
    expected = upsweep.linear_recurrence(x.copy(), x.copy())
    upsweep.linear_recurrence(x, x, out=x)
    assert same_bits(x, expected)


def test_in_place_with_odd_strides():
    big = random((40, 90))
    part = big[::3, 5:85:2]
    expected = [upsweep.discounted_cumsum(part.copy(), 0.9, axis=axis) for axis in (0, 1)]
    for axis in (0, 1):
        x = big.copy()[::3, 5:85:2]
        upsweep.discounted_cumsum(x, 0.9, axis=axis, out=x)
        np.testing.assert_allclose(x, expected[axis], rtol=1e-12)
    x = big.copy()[::-1, ::-1]
    expected = upsweep.discounted_cumsum(x.copy(), 0.9)
    upsweep.discounted_cumsum(x, 0.9, out=x)
    np.testing.assert_allclose(x, expected, rtol=1e-12)


def test_two_views_of_the_same_memory_are_in_place():
    x = random((3, 500))
    expected = upsweep.cumulative_sum(x)
    upsweep.cumulative_sum(x[:], out=x.view())
    assert same_bits(x, expected)


def views(x):
    """Pairs of an input and an output that share some memory and are not the same."""
    n = x.size // 2
    yield "shifted by one", x[:n], x[1 : n + 1]
    yield "reversed", x[:n], x[:n][::-1]
    yield "every other", x[:n], x[: 2 * n : 2]
    yield "transposed", x[:100].reshape(10, 10), x[:100].reshape(10, 10).T
    yield "shifted by a part of an element", x[:n], x.view(np.uint8)[4 : 4 + 8 * n].view(x.dtype)


@pytest.mark.parametrize("which", range(5))
def test_overlap_in_part_is_refused(which):
    x = random(1000)
    before = x.copy()
    label, source, out = list(views(x))[which]
    with pytest.raises(ValueError, match="out"):
        upsweep.cumulative_sum(source, out=out)
    with pytest.raises(ValueError, match="out"):
        upsweep.discounted_cumsum(source, 0.5, out=out)
    with pytest.raises(ValueError, match="out"):
        upsweep.linear_recurrence(source, np.ones(source.shape), out=out)
    with pytest.raises(ValueError, match="out"):
        upsweep.linear_recurrence(np.ones(source.shape), source, out=out)
    assert same_bits(x, before), label


def test_overlap_with_the_small_arguments_is_refused():
    memory = random(1000)
    out = memory[:900].reshape(3, 300)
    x = random((3, 300), seed=1)
    with pytest.raises(ValueError, match="out"):
        upsweep.discounted_cumsum(x, memory[10:13].reshape(3, 1), out=out)
    with pytest.raises(ValueError, match="out"):
        upsweep.discounted_cumsum(x, 0.5, initial=memory[10:13], out=out)
    with pytest.raises(ValueError, match="out"):
        upsweep.discounted_cumsum(x, 0.5, reset=memory.view(bool)[: 900 * 8 : 8].reshape(3, 300), out=out)
    with pytest.raises(ValueError, match="out"):
        upsweep.discounted_cumsum(memory[:300], np.full((3, 1), 0.5), out=out)


def test_interleaved_views_share_no_element():
    x = random(1000)
    expected = upsweep.cumulative_sum(x[::2].copy())
    upsweep.cumulative_sum(x[::2], out=x[1::2])
    np.testing.assert_allclose(x[1::2], expected, rtol=1e-12)


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("name", SCANS)
def test_every_operand_of_a_short_axis_may_be_out(name, length):
    names = {"cumulative_sum": ["x"], "discounted_cumsum": ["x", "gamma"]}.get(name, ["gates", "tokens"])
    for axis in range(3):
        shape = (3, 2, 40)[:axis] + (length,) + (3, 2, 40)[axis + 1 :]
        state = random(shape[:axis] + shape[axis + 1 :], seed=9)
        for reverse in (False, True):
            for keywords in ({}, {"initial": state}, {"exclusive": True}, {"exclusive": True, "initial": state}):
                for which in range(len(names)):
                    arrays = [random(shape, seed=place) for place in range(len(names))]
                    keywords = {"axis": axis, "reverse": reverse, "return_final": True, **keywords}
                    expected, final = getattr(upsweep, name)(*arrays, **keywords)
                    got, got_final = getattr(upsweep, name)(*arrays, **keywords, out=arrays[which])
                    assert got is arrays[which]
                    assert same_bits(got, expected) and same_bits(got_final, final)


def test_what_overlaps_has_the_users_name():
    memory = random(1000)
    out, x = memory[:900].reshape(3, 300), random((3, 300), seed=1)
    for factor in (memory[10:13].reshape(3, 1), memory[1:901].reshape(3, 300)):
        with pytest.raises(ValueError, match="out: overlaps gates in memory"):
            upsweep.linear_recurrence(factor, x, out=out)
        with pytest.raises(ValueError, match="out: overlaps gamma in memory"):
            upsweep.discounted_cumsum(x, factor, out=out)
