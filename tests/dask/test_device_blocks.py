"""Hazard: tasks that copy blocks of a device to the host, with stand-ins for the device."""

import numpy as np
import pytest
import upsweep
from device_blocks import computed
from devices import FakeCupyArray
from helpers import SCANS, operands, random, same_bits

pytest.importorskip("dask.array")


@pytest.mark.parametrize("method", ["sequential", "tree"])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, method, cupy_blocks):
    arrays = operands(name, (100,))
    lazy = [cupy_blocks(a, 30) if np.ndim(a) else a for a in arrays]
    for reverse in (False, True):
        keywords = {"reverse": reverse, "return_final": True}
        result = getattr(upsweep, name)(*lazy, method=method, **keywords)
        for each, expected in zip(result, getattr(upsweep, name)(*arrays, **keywords), strict=True):
            np.testing.assert_allclose(computed(each), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex128"])
def test_states_and_resets_on_the_device(dtype, cupy_blocks):
    x, reset = (5 * random((3, 100))).astype(dtype), random((3, 100), seed=1) > 1.5
    start = (5 * random(3, seed=2)).astype(dtype)
    lazy, keywords = cupy_blocks(x, (2, 30)), {"return_final": True, "axis": 1}
    for flags in (cupy_blocks(reset, (3, 40)), FakeCupyArray(reset, 0)):
        for method in ("sequential", "tree"):
            result = upsweep.cumulative_sum(
                lazy, reset=flags, initial=cupy_blocks(start, 1), method=method, include_initial=True, **keywords
            )
            expected = upsweep.cumulative_sum(x, reset=reset, initial=start, include_initial=True, **keywords)
            for each, exact in zip(result, expected, strict=True):
                np.testing.assert_allclose(computed(each), exact, rtol=1e-5 if dtype == "float32" else 1e-12)


def test_counts(cupy_blocks):
    keys = np.random.default_rng(0).integers(0, 20, 100)
    lazy = cupy_blocks(keys, 30)
    assert same_bits(computed(upsweep.bincount(lazy, length=20)), np.bincount(keys, minlength=20))
    counts, dropped = upsweep.bincount(lazy, length=10, invalid="drop", return_invalid=True)
    assert same_bits(computed(counts), np.bincount(keys)[:10])
    assert computed(dropped) == (keys >= 10).sum()


def test_weights_of_every_kind(cupy_blocks):
    keys = np.random.default_rng(0).integers(0, 9, (3, 50))
    lazy = cupy_blocks(keys, (2, 20))
    for weights in (random((3, 50, 2)), keys, random((3, 50), np.float32), random((3, 50), np.complex128)):
        summands = cupy_blocks(weights, (2, 20, 1)[: weights.ndim])
        result, expected = (
            upsweep.bincount(*arguments, axis=1, length=9) for arguments in ((lazy, summands), (keys, weights))
        )
        np.testing.assert_allclose(computed(result), expected, rtol=1e-6)
        if weights.ndim == 2 and weights.dtype.kind != "c":
            np.testing.assert_allclose(
                computed(upsweep.bincount(lazy[0], summands[0])), np.bincount(keys[0], weights[0]), rtol=1e-6
            )
            result = upsweep.histogram(lazy * 1.0, 5, weights=summands)
            for each, exact in zip(result, np.histogram(keys * 1.0, 5, weights=weights)):
                np.testing.assert_allclose(computed(each), exact, rtol=1e-6)


def test_deterministic_sums_on_a_device(cupy_blocks, fake_cuda):
    keys, weights = np.arange(100) % 7, random(100)
    for deterministic in (False, True):
        fake_cuda.counts.clear()
        lazy = upsweep.bincount(
            cupy_blocks(keys, 30), cupy_blocks(weights, 30), length=7, deterministic=deterministic
        )
        np.testing.assert_allclose(computed(lazy), np.bincount(keys, weights), rtol=1e-12)
        assert len(fake_cuda.counts) == 4 and all(bool(p.deterministic) == deterministic for p in fake_cuda.counts)


@pytest.mark.parametrize("limits", [None, (-1, 1)])
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_histograms(dtype, density, limits, cupy_blocks):
    x = (3 * random(100)).astype(dtype)
    result = upsweep.histogram(cupy_blocks(x, 30), 8, limits, density=density)
    for each, expected in zip(result, np.histogram(x, 8, limits, density=density), strict=True):
        assert each.dtype == expected.dtype
        np.testing.assert_allclose(computed(each), expected, rtol=1e-12)
