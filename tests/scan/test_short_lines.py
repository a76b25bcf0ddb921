"""Hazard: short lines go through a kernel together; what one of them holds is no business of the others."""

import numpy as np
import pytest
import upsweep
from helpers import BFLOAT16, SCANS, dtype_name, operands, same_bits

DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64")] + [BFLOAT16]


def one_by_one(name, arrays, **keywords):
    """The rows, each in a call of its own."""
    rows = []
    for row in range(len(arrays[-1] if name == "linear_recurrence" else arrays[0])):
        own = {key: value[row] if isinstance(value, np.ndarray) else value for key, value in keywords.items()}
        parts = [a[row] if isinstance(a, np.ndarray) else a for a in arrays]
        rows.append(getattr(upsweep, name)(*parts, return_final=True, **own))
    return tuple(np.stack(part) for part in zip(*rows))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_rows_together_have_the_bits_of_rows_alone(name, dtype):
    for length in (1, 3, 8, 31, 64, 67, 130):
        arrays = operands(name, (70, length), dtype)
        generator = np.random.default_rng(length)
        initial, reset = generator.random(70), generator.random((70, length)) < 0.05
        strategies = [{}, {"reverse": True}, {"exclusive": True, "initial": initial}, {"reset": reset}]
        for keywords in strategies:
            together = getattr(upsweep, name)(*arrays, return_final=True, **keywords)
            assert same_bits(together, one_by_one(name, arrays, **keywords)), keywords


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("name", SCANS)
def test_rows_apart_in_memory_and_from_row_to_row_backwards(name, dtype):
    for pick in (
        (slice(None), slice(3, 67)),
        (slice(None, None, -1), slice(0, 64)),
        (slice(None, None, 3), slice(64)),
    ):
        arrays = [a[pick] if isinstance(a, np.ndarray) else a for a in operands(name, (120, 100), dtype)]
        out = np.zeros((120, 100), dtype)[pick]
        getattr(upsweep, name)(*arrays, out=out)
        assert same_bits(out.copy(), one_by_one(name, arrays)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("name", SCANS)
def test_a_row_with_a_bad_number_leaves_its_neighbours_alone(name, bad):
    arrays = operands(name, (100, 64), np.float64)
    clean = getattr(upsweep, name)(*arrays)
    changed = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
    changed[-1 if name == "linear_recurrence" else 0][41, [20, 21]] = bad
    y = getattr(upsweep, name)(*changed)
    others = np.arange(100) != 41
    assert same_bits(y[others], clean[others])
    np.testing.assert_allclose(y[41, :20], clean[41, :20], rtol=1e-12)
    assert not (np.abs(y[41, 21]) < 1e290)


def test_outputs_that_go_past_the_cache_from_rows_that_are_not_aligned():
    # 16 MiB and more, in rows of 66 numbers: no row but the first starts on a vector.
    x = np.random.default_rng(0).standard_normal((70_000, 66)).astype(np.float32)
    y = upsweep.discounted_cumsum(x, 0.9)
    few = np.r_[0, 1, 2, 35_000, 69_999]
    assert same_bits(y[few], one_by_one("discounted_cumsum", [x[few], 0.9])[0])


@pytest.mark.parametrize("shape", [(1000, 1), (1, 1000), (1000, 2), (40, 1, 25), (1,)])
def test_lines_in_reverse_stay_within_their_memory(shape):
    """The plainest calls, which have no keywords but `reverse`, on memory with neighbours on both sides."""
    memory = np.full(3 * np.prod(shape), np.nan)
    out = memory[np.prod(shape) : 2 * np.prod(shape)].reshape(shape)
    for axis in range(len(shape)):
        x = np.random.default_rng(axis).random(shape)
        for reverse in (False, True):
            upsweep.discounted_cumsum(x, 0.5, axis=axis, reverse=reverse, out=out)
            flipped = np.flip(x, axis) if reverse else x
            expected = upsweep.discounted_cumsum(flipped, 0.5, axis=axis, initial=0.0)
            np.testing.assert_allclose(out, np.flip(expected, axis) if reverse else expected, rtol=1e-15)
            assert np.isnan(memory).sum() == 2 * np.prod(shape)
