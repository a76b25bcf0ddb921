"""Hazard: rows. Batches of counts along any axis, in any layout, short rows and long ones."""

import numpy as np
import pytest
import upsweep
from helpers import same_bits
from upsweep import reference


def keys_of(shape, n_bins, dtype="int64", seed=0):
    return np.random.default_rng(seed).integers(0, n_bins, shape).astype(dtype)


def by_rows(x, weights=None, *, axis, n_bins):
    """np.bincount of every line."""
    lines = np.moveaxis(x, axis, -1)
    terms = None if weights is None else np.moveaxis(weights, axis, -1)
    counts = np.zeros((*lines.shape[:-1], n_bins), np.intp if weights is None else np.float64)
    for row in np.ndindex(lines.shape[:-1]):
        counts[row] = np.bincount(lines[row], None if terms is None else terms[row], n_bins)
    return np.moveaxis(counts, -1, axis)


@pytest.mark.parametrize("shape", [(3, 4), (1, 50), (50, 1), (4, 5, 6), (2, 1, 3, 4), (0, 3), (3, 0), (2, 0, 4)])
def test_every_axis_against_the_twin(shape):
    x = keys_of(shape, 7, "int16")
    weights = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    for axis in range(-len(shape), len(shape)):
        assert same_bits(upsweep.bincount(x, axis=axis), reference.bincount(x, axis=axis))
        result = upsweep.bincount(x, weights, 9, axis=axis)
        assert same_bits(result, reference.bincount(x, weights, 9, axis=axis))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("layout", ["C", "F", "transposed", "reversed", "strided", "swapped", "broadcast"])
def test_every_layout(layout, axis):
    x = keys_of((20, 300, 17), 60, "int32")
    x = {
        "C": x, "F": np.asfortranarray(x), "transposed": x.transpose(1, 2, 0), "reversed": x[::-1, :, ::-1],
        "strided": x[::2, ::3], "swapped": x.astype(">i4"), "broadcast": np.broadcast_to(x[:, :1], x.shape),
    }[layout]  # fmt: skip
    weights = np.random.default_rng(1).integers(-9, 9, x.shape).astype(np.float64).T.copy().T
    plain = x.astype(np.int64)
    for n_threads in (1, 2, 5):
        result = upsweep.bincount(x, axis=axis, length=60, n_threads=n_threads)
        assert same_bits(np.ascontiguousarray(result), by_rows(plain, axis=axis, n_bins=60))
        sums = upsweep.bincount(x, weights, axis=axis, length=60, n_threads=n_threads)
        np.testing.assert_array_equal(sums, by_rows(plain, weights, axis=axis, n_bins=60))


@pytest.mark.parametrize("shape, n_bins", [
    ((100_000, 8), 10), ((3, 200_000), 300), ((3, 200_000), 30_000), ((40, 5000), 100), ((2, 400_000), 300_000),
    ((2, 600_000), 5_000_000), ((9, 4097), 5000), ((70_000, 1), 3),
])  # fmt: skip
def test_few_long_rows_and_many_short_ones(shape, n_bins):
    x = keys_of(shape, n_bins)
    weights = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    counts = by_rows(x, axis=1, n_bins=n_bins)
    sums = by_rows(x, weights, axis=1, n_bins=n_bins)
    for n_threads in (1, 3):
        assert same_bits(upsweep.bincount(x, axis=1, length=n_bins, n_threads=n_threads), counts)
        result = upsweep.bincount(x, weights, axis=1, length=n_bins, n_threads=n_threads)
        np.testing.assert_array_equal(result, sums)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2", "bool"])
def test_channels_of_an_image_whose_dtype_fits_the_bins(dtype):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(dtype)
    n_bins = 1 << 8 * image.dtype.itemsize
    for x, axis in ((image[..., 1], 0), (image[..., 1], 1), (image, 1), (image.reshape(-1, 3), 0)):
        expected = by_rows(x, axis=axis, n_bins=n_bins)
        for keywords in ({"minlength": n_bins}, {"length": n_bins}):
            np.testing.assert_array_equal(upsweep.bincount(x, axis=axis, **keywords), expected)
    high = np.array([[0, n_bins - 1], [1, 2]]).astype(dtype)
    if dtype != "bool":
        with pytest.raises(ValueError, match=f"is {n_bins - 1}, outside the {n_bins - 1} bins"):
            upsweep.bincount(high, axis=1, length=n_bins - 1)
        assert upsweep.bincount(high, axis=1, minlength=n_bins - 1).shape == (2, n_bins)


def test_the_number_of_bins_is_of_the_largest_key_of_all():
    assert upsweep.bincount([[0, 1], [5, 5]], axis=1).shape == (2, 6)
    assert upsweep.bincount([[0, 1], [5, 5]], axis=0).shape == (6, 2)
    assert upsweep.bincount([[0, 1], [5, 5]], minlength=9, axis=1).shape == (2, 9)


def test_several_sums_along_an_axis():
    x = keys_of((4, 30, 3), 5)
    weights = np.random.default_rng(1).integers(-3, 4, (4, 30, 3, 2))
    result = upsweep.bincount(x, weights, axis=1)
    assert result.shape == (4, 5, 3, 2)
    np.testing.assert_array_equal(result, reference.bincount(x, weights, axis=1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_out_of_any_layout(axis):
    x = keys_of((6, 50, 7), 9)
    expected = upsweep.bincount(x, axis=axis)
    for order in "CF":
        out = np.full(expected.shape, 5, order=order)
        assert upsweep.bincount(x, axis=axis, out=out) is out
        np.testing.assert_array_equal(out, expected)
        upsweep.bincount(x, axis=axis, out=out, accumulate=True)
        np.testing.assert_array_equal(out, 2 * expected)


def test_the_same_bits_for_any_number_of_threads():
    for shape in ((5000, 40), (3, 300_000)):
        x, weights = keys_of(shape, 30), np.random.default_rng(1).standard_normal(shape)
        one = upsweep.bincount(x, weights, axis=1, n_threads=1)
        assert same_bits(upsweep.bincount(x, weights, axis=1, n_threads=3), one)


def test_what_is_wrong_with_the_axis_is_said():
    x = keys_of((3, 4), 5)
    with pytest.raises(ValueError, match="axis="):
        upsweep.bincount(x)
    for axis in (2, -3):
        with pytest.raises(np.exceptions.AxisError, match="axis"):
            upsweep.bincount(x, axis=axis)
    with pytest.raises(TypeError, match="axis"):
        upsweep.bincount(x, axis=0.5)
    with pytest.raises(TypeError, match=r"axis: expected one integer, got \(0, 1\); reshape several axes to one"):
        upsweep.bincount(x, axis=(0, 1))
    with pytest.raises(np.exceptions.AxisError, match="axis"):
        upsweep.bincount(3, axis=0)


def test_bad_keys_are_told_by_their_place():
    x = keys_of((3, 4, 5), 6)
    x[1, 2, 3] = -7
    for axis in (0, 1, 2):
        with pytest.raises(ValueError, match=r"^x: .*\(1, 2, 3\) is -7"):
            upsweep.bincount(x, axis=axis)
    x[1, 2, 3] = 6
    with pytest.raises(ValueError, match=r"^x: element \(1, 2, 3\) is 6, outside the 6 bins"):
        upsweep.bincount(x, axis=0, length=6)
    out = np.full((6, 4, 5), 77)
    with pytest.raises(ValueError, match=r"^x: "):
        upsweep.bincount(x, axis=0, out=out)
    assert (out == 77).all()
