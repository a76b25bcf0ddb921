"""Hazard: blocks that lie on a device, over stand-ins: what tasks hand each other stays there."""

import numpy as np
import pytest
import upsweep
from devices import FakeCupyArray
from helpers import SCANS, operands, random, same_bits

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")


def _hosted(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(_hosted, value))
    return value.host if isinstance(value, FakeCupyArray) else value


def _refuse_numpy(values):
    """cupy takes numbers beside its arrays, and none of numpy's arrays."""
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")


def _by_ufunc(self, ufunc, method, *inputs, **keywords):
    _refuse_numpy(inputs)
    assert method == "__call__"
    return FakeCupyArray(np.asarray(ufunc(*map(_hosted, inputs), **keywords)), 0)


def _by_function(self, function, types, arguments, keywords):
    if function in (np.ndim, np.shape, np.isscalar):
        return function(*map(_hosted, arguments))
    _refuse_numpy(arguments)
    return FakeCupyArray(np.asarray(function(*_hosted(arguments), **keywords)), 0)


@pytest.fixture
def cupy_blocks(monkeypatch, fake_cupy):
    """From an array to a dask array whose blocks are (what stands for) cupy's."""
    monkeypatch.setattr(FakeCupyArray, "__array_ufunc__", _by_ufunc)
    monkeypatch.setattr(FakeCupyArray, "__array_function__", _by_function, raising=False)

    def of(name):
        return lambda self, *a, **k: FakeCupyArray(np.asarray(getattr(self.host, name)(*map(_hosted, a), **k)), 0)

    for name in ("min", "max", "all", "any", "copy", "__sub__", "__truediv__", "__and__", "__or__", "__radd__"):
        monkeypatch.setattr(FakeCupyArray, name, of(name), raising=False)
    monkeypatch.setattr(FakeCupyArray, "size", property(lambda self: self.host.size), raising=False)
    monkeypatch.setattr(FakeCupyArray, "item", lambda self: self.host.item(), raising=False)
    monkeypatch.setattr(FakeCupyArray, "__bool__", lambda self: bool(self.host), raising=False)
    monkeypatch.setattr(
        FakeCupyArray, "__setitem__", lambda self, i, v: self.host.__setitem__(i, _hosted(v)), raising=False
    )

    def sent(array, chunks):
        lazy = da.from_array(array, chunks=chunks)
        meta = FakeCupyArray(np.empty((0,) * array.ndim, array.dtype), 0)
        return lazy.map_blocks(lambda block: FakeCupyArray(block.copy(), 0), dtype=array.dtype, meta=meta)

    return sent


def computed(lazy):
    """The blocks along the only axis, put together on the host; each of them lies on the device."""
    assert isinstance(lazy._meta, FakeCupyArray) and lazy._meta.dtype == lazy.dtype
    blocks = dask.compute(*np.ravel(lazy.to_delayed()).tolist(), scheduler="sync")
    assert all(isinstance(block, FakeCupyArray) and block.dtype == lazy.dtype for block in blocks)
    return np.concatenate([block.host for block in blocks]) if lazy.ndim else blocks[0].host


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
