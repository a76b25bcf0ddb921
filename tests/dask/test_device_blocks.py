"""Hazard: blocks that lie on a device, over stand-ins: what tasks hand each other stays there."""

import numpy as np
import pytest
import upsweep
from device_blocks import computed
from helpers import SCANS, operands, random, same_bits

pytest.importorskip("dask.array")


@pytest.mark.parametrize("method", ["sequential", "tree"])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, method, cupy_blocks):
    arrays = operands(name, (100,))
    lazy = [cupy_blocks(a, 30) if np.ndim(a) else a for a in arrays]
    for reverse in (False, True):
        keywords = {"reverse": reverse, "return_final": True}
        mine = getattr(upsweep, name)(*lazy, method=method, **keywords)
        for each, theirs in zip(mine, getattr(upsweep, name)(*arrays, **keywords), strict=True):
            np.testing.assert_allclose(computed(each), theirs, rtol=1e-12)


def test_counts(cupy_blocks):
    keys = np.random.default_rng(0).integers(0, 20, 100)
    lazy = cupy_blocks(keys, 30)
    assert same_bits(computed(upsweep.bincount(lazy, length=20)), np.bincount(keys, minlength=20))
    counts, dropped = upsweep.bincount(lazy, length=10, invalid="drop", return_invalid=True)
    assert same_bits(computed(counts), np.bincount(keys)[:10])
    assert computed(dropped) == (keys >= 10).sum()


def test_sums_on_a_device_are_deterministic_if_that_is_asked_for(cupy_blocks, fake_cuda):
    keys, weights = np.arange(100) % 7, random(100)
    for wanted in (False, True):
        fake_cuda.counts.clear()
        lazy = upsweep.bincount(cupy_blocks(keys, 30), cupy_blocks(weights, 30), length=7, deterministic=wanted)
        np.testing.assert_allclose(computed(lazy), np.bincount(keys, weights), rtol=1e-12)
        assert len(fake_cuda.counts) == 4 and all(bool(p.deterministic) == wanted for p in fake_cuda.counts)


@pytest.mark.parametrize("limits", [None, (-1, 1)])
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_histograms(dtype, density, limits, cupy_blocks):
    x = (3 * random(100)).astype(dtype)
    mine = upsweep.histogram(cupy_blocks(x, 30), 8, limits, density=density)
    for each, theirs in zip(mine, np.histogram(x, 8, limits, density=density), strict=True):
        assert each.dtype == theirs.dtype
        np.testing.assert_allclose(computed(each), theirs, rtol=1e-12)
