"""Hazard: blocks that together give another result than the whole, or are held in memory."""

import doctest
import textwrap
import tracemalloc

import numpy as np
import pytest
import upsweep
from helpers import DTYPES, SCANS, operands, random, reference_scan, split_at
from upsweep.testing import assert_scan_close

CUTS = (0, 0, 1, 8, 8, 60)


def cut(array, parts, axis=-1):
    """The blocks of an array; what is no array, or is constant along the axis, is the same for all."""
    if not isinstance(array, np.ndarray) or array.shape[axis] == 1:
        return array
    before = (slice(None),) * (axis % array.ndim)
    return (array[(*before, part)] for part in parts)


def stream(name, *arrays, axis=-1, reverse=False, reset=None, out=None, **keywords):
    """The blocks' results joined, and the state."""
    length = max(np.shape(a)[axis] for a in arrays if np.ndim(a))
    parts = split_at(length, *CUTS)[:: -1 if reverse else 1]
    scan = upsweep.scan_blocks(
        getattr(upsweep, name), *(cut(a, parts, axis) for a in arrays), axis=axis, reverse=reverse,
        reset=None if reset is None else cut(reset, parts, axis),
        out=None if out is None else cut(out, parts, axis), **keywords,
    )  # fmt: skip
    results = list(scan)
    return np.concatenate(results[:: -1 if reverse else 1], axis=axis), scan.state


def compare(name, *arrays, **keywords):
    """Blocks against the reference of the whole, result and state."""
    result, state = stream(name, *arrays, **keywords)
    rows = reference_scan(name, *arrays, return_final=True, **keywords)
    half = result.dtype.itemsize == 2
    for actual, (exact, scale) in zip((result, state), rows):
        assert_scan_close(actual, exact, scale, rtol=1e-6 if half else None)
    assert result.dtype == getattr(upsweep, name)(*arrays, **keywords).dtype
    return result, state


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_blocks_are_the_whole(name, dtype, reverse):
    for shape, axis in (((100,), -1), ((3, 100), 1), ((100, 3), 0), ((2, 100, 2), 1)):
        arrays = operands(name, shape, dtype)
        reset = random(shape, seed=3) > 0.95
        state_shape = tuple(np.delete(shape, axis))
        initial = random(state_shape, seed=5)
        for keywords in ({}, {"reset": reset}, {"initial": initial}, {"exclusive": True, "reset": reset}):
            compare(name, *arrays, axis=axis, reverse=reverse, **keywords)


@pytest.mark.parametrize("reverse", [False, True])
def test_each_keyword_of_one_scan(reverse):
    x = random((3, 100))
    compare("cumulative_sum", x, reverse=reverse, include_initial=True, initial=2.0)
    compare("cumulative_sum", x.astype(np.float32), reverse=reverse, include_initial=True)
    compare("cumulative_sum", np.arange(100, dtype=np.int8), reverse=reverse)
    compare("cumulative_sum", x, reverse=reverse, dtype="float32")
    for gamma in (random((3, 1)), random((3, 100)), 0.3 - 0.4j):
        compare("discounted_cumsum", x, gamma, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("window", [1, 2, 7, 99, 1000])
def test_windows_reach_over_blocks(window, reverse):
    x = random((3, 100))
    x[1, 20] = np.nan
    for reset in (None, random((3, 100), seed=3) > 0.9):
        keywords = {"window": window, "reverse": reverse, "reset": reset}
        out = np.empty_like(x)
        result, _ = stream("discounted_cumsum", x, 0.9, out=out, **keywords)
        whole = upsweep.discounted_cumsum(x, 0.9, **keywords)
        np.testing.assert_allclose(result, whole, rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(out, result)


def test_the_number_of_blocks_adds_nothing_to_the_error():
    x = random(4000, np.float32, low=0.9)
    scan = upsweep.scan_blocks(upsweep.cumulative_sum, (x[i : i + 1] for i in range(len(x))))
    result = np.concatenate(list(scan))
    assert_scan_close(result, np.cumsum(x, dtype=float), np.cumsum(x, dtype=float))
    assert scan.state.dtype == np.float64
    assert_scan_close(scan.state, x.sum(dtype=float), x.sum(dtype=float))


def test_products_beyond_the_range_of_numbers():
    gates = np.float32([1e30] * 24 + [1e-30] * 24)
    for tokens in (np.zeros(48, np.float32), np.float32([0] * 47 + [2])):
        result, state = stream("linear_recurrence", gates, tokens, initial=0.0)
        np.testing.assert_array_equal(result, tokens)
        assert state == tokens[-1]


def test_results_may_take_the_place_of_blocks():
    for dtype in (np.float32, np.float64):
        x = random((3, 100), dtype)
        expected, state = stream("discounted_cumsum", x, 0.9)
        result, other = stream("discounted_cumsum", x, 0.9, out=x)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(other, state)


def test_nothing_is_read_before_it_is_asked_for():
    read = []

    def blocks():
        for i in range(3):
            read.append(i)
            yield np.ones(2)

    scan = upsweep.scan_blocks(upsweep.cumulative_sum, blocks())
    assert read == [] and scan.state is None
    next(scan)
    assert read == [0] and scan.state == 2
    later = upsweep.scan_blocks(upsweep.cumulative_sum, blocks(), initial=scan.state)
    assert [y[-1] for y in later] == [4, 6, 8]


def test_memory_is_that_of_a_few_blocks():
    def blocks():
        return (np.ones(1 << 16) for _ in range(64))

    for keywords in ({}, {"window": 1000}):
        tracemalloc.start()
        for _ in upsweep.scan_blocks(upsweep.discounted_cumsum, blocks(), 0.5, **keywords):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * 8 * (1 << 16)


def test_the_example_from_zarr_to_zarr(tmp_path, monkeypatch):
    """What the docstring shows, as it stands there."""
    zarr = pytest.importorskip("zarr")
    monkeypatch.chdir(tmp_path)
    x = zarr.create_array("x.zarr", shape=(100, 3), chunks=(16, 3), dtype="f4")
    x[:] = random((100, 3), np.float32)
    shown = upsweep.scan_blocks.__doc__
    sources = (example.source for example in doctest.DocTestParser().get_examples(shown))
    cut = next(source for source in sources if source.startswith("def"))
    names = {"zarr": zarr, "upsweep": upsweep}
    exec(cut + textwrap.dedent(shown.partition("slices of another::")[2]), names)
    np.testing.assert_array_equal(names["result"][:], upsweep.cumulative_sum(x[:], axis=0))


@pytest.mark.parametrize("reverse", [False, True])
def test_windows_over_blocks_some_of_which_have_resets(reverse):
    x, reset = random(12), np.zeros(12, bool)
    reset[[2, 5, 6]] = True
    for without in (0, 1, 2):  # the block that has none
        operand = reset.copy()
        operand[4 * without : 4 * without + 4] = False
        begins = (8, 4, 0) if reverse else (0, 4, 8)
        flags = [None if b == 4 * without else operand[b : b + 4] for b in begins]
        result = upsweep.scan_blocks(
            upsweep.discounted_cumsum, (x[b : b + 4] for b in begins), 0.5, window=4, reset=flags, reverse=reverse
        )
        whole = upsweep.discounted_cumsum(x, 0.5, window=4, reset=operand, reverse=reverse)
        for b, y in zip(begins, result, strict=True):
            np.testing.assert_allclose(y, whole[b : b + 4], rtol=1e-12)


def test_what_is_refused():
    ones = [np.ones(3), np.ones(3)]

    def scan(*arguments, **keywords):
        return list(upsweep.scan_blocks(*arguments, **keywords))

    with pytest.raises(TypeError, match="scan: expected one of cumulative_sum"):
        upsweep.scan_blocks(np.cumsum, iter(ones))
    with pytest.raises(TypeError, match="arrays: linear_recurrence takes 2"):
        upsweep.scan_blocks(upsweep.linear_recurrence, iter(ones))
    with pytest.raises(TypeError, match=r"x: expected an iterable of blocks, got numpy\.ndarray"):
        upsweep.scan_blocks(upsweep.cumulative_sum, np.ones(3))
    with pytest.raises(TypeError, match="return_final: "):
        upsweep.scan_blocks(upsweep.cumulative_sum, iter(ones), return_final=True)
    with pytest.raises(TypeError, match="keywords: cumulative_sum takes no gamma"):
        upsweep.scan_blocks(upsweep.cumulative_sum, iter(ones), gamma=3)
    with pytest.raises(ValueError, match="window: cannot be combined with initial"):
        upsweep.scan_blocks(upsweep.discounted_cumsum, iter(ones), 0.5, window=3, initial=1.0)
    with pytest.raises(ValueError, match="gates: ended after 1 blocks, while tokens goes on"):
        scan(upsweep.linear_recurrence, ones[:1], ones)
    with pytest.raises(ValueError, match="gates: goes on after tokens has ended"):
        scan(upsweep.linear_recurrence, ones, ones[:1])
    with pytest.raises(ValueError, match=r"arrays: a block with a state of shape \(2,\) follows"):
        scan(upsweep.cumulative_sum, [np.ones((1, 3)), np.ones((2, 3))])
    two_by_three = [np.ones((2, 3)), np.ones((3, 3))]
    for scanned in ((upsweep.cumulative_sum, two_by_three), (upsweep.discounted_cumsum, two_by_three, 0.5)):
        with pytest.raises(
            ValueError, match=r"arrays: a block with a state of shape \(3,\) follows those of \(2,\)"
        ):
            scan(*scanned)
    with pytest.raises(ValueError, match=r"arrays: a block with a state of shape \(3,\) follows those of \(2,\)"):
        scan(upsweep.discounted_cumsum, two_by_three, 0.5, window=2)
    with pytest.raises(ValueError, match="x: cannot be made an array"):
        scan(upsweep.cumulative_sum, [[1.0], [[1.0], [2.0, 3.0]]])
    with pytest.raises(TypeError, match="gamma: expected the same for all blocks with window="):
        upsweep.scan_blocks(upsweep.discounted_cumsum, ones, iter([0.5, 0.6]), window=2)
    with pytest.raises(TypeError, match="out: expected an array, got list"):
        scan(upsweep.discounted_cumsum, ones, 0.5, window=2, out=[[1.0] * 3] * 2)
    with pytest.raises(ValueError, match="out: is read-only"):
        scan(upsweep.discounted_cumsum, ones, 0.5, window=2, out=[np.broadcast_to(0.0, 3)] * 2)
    with pytest.raises(ValueError, match="out: expected float64"):
        scan(upsweep.discounted_cumsum, ones, 0.5, window=2, out=[np.ones(3, np.float32)] * 2)
