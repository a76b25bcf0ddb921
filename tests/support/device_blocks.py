"""dask arrays whose blocks stand in for cupy arrays; the copies between host and device are counted."""

import numpy as np
import pytest
from devices import FakeCupyArray


def hosted(value):
    """Return host arrays for the stand-ins among the values."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(hosted, value))
    return value.host if isinstance(value, FakeCupyArray) else value


class Crossings:
    """Counts of elements that were read from the device one by one, and sizes of arrays that were sent to it."""

    def __init__(self):
        self.read, self.sent = 0, []


def _refuse_numpy(values):
    """Raise for a numpy array: cupy functions take numbers and cupy arrays only."""
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")


def _wrap(array):
    """Return the array as a stand-in for a cupy array."""
    return FakeCupyArray(np.asarray(array), 0)


def _by_ufunc(self, ufunc, method, *inputs, **keywords):
    _refuse_numpy(inputs)
    assert method == "__call__"
    return _wrap(ufunc(*map(hosted, inputs), **keywords))


def _by_function(crossings, self, function, types, arguments, keywords):
    if function in (np.ndim, np.shape, np.isscalar):
        return function(*map(hosted, arguments))
    if function is np.asarray:  # with like=, the way to send one
        crossings.sent.append(arguments[0].size)
    else:
        _refuse_numpy(arguments)
    return _wrap(function(*hosted(arguments), **keywords))


def _method(name):
    def method(self, *arguments, **keywords):
        _refuse_numpy(arguments)
        return _wrap(getattr(self.host, name)(*map(hosted, arguments), **keywords))

    return method


_METHODS = (
    "min", "max", "all", "any", "copy", "ravel", "__sub__", "__rsub__", "__truediv__", "__rtruediv__", "__rmul__",
    "__radd__", "__neg__", "__and__", "__or__", "__invert__", "__gt__", "__ge__", "__le__", "__ne__", "swapaxes",
)  # fmt: skip


@pytest.fixture
def crossings(monkeypatch, fake_cupy):
    """Let the stand-ins take part in numpy's functions and operators, and count what crosses."""
    counts = Crossings()
    monkeypatch.setattr(FakeCupyArray, "__array_ufunc__", _by_ufunc)
    monkeypatch.setattr(
        FakeCupyArray, "__array_function__", lambda self, *call: _by_function(counts, self, *call), raising=False
    )
    for name in _METHODS:
        monkeypatch.setattr(FakeCupyArray, name, _method(name), raising=False)

    def read(convert):
        def one(self):
            counts.read += 1
            return convert(self.host)

        return one

    for name, convert in (("item", np.ndarray.item), ("__bool__", bool)):
        monkeypatch.setattr(FakeCupyArray, name, read(convert), raising=False)
    monkeypatch.setattr(FakeCupyArray, "size", property(lambda self: self.host.size), raising=False)
    monkeypatch.setattr(FakeCupyArray, "__len__", lambda self: len(self.host), raising=False)

    def write(self, index, value):
        _refuse_numpy((value,))
        self.host[hosted(index)] = hosted(value)

    monkeypatch.setattr(FakeCupyArray, "__setitem__", write, raising=False)
    return counts


@pytest.fixture
def cupy_blocks(crossings):
    """Return a function that makes a dask array whose blocks stand in for cupy arrays."""
    import dask.array as da

    def sent(array, chunks):
        lazy = da.from_array(array, chunks=chunks)
        meta = FakeCupyArray(np.empty((0,) * array.ndim, array.dtype), 0)
        return lazy.map_blocks(lambda block: FakeCupyArray(block.copy(), 0), dtype=array.dtype, meta=meta)

    return sent


def computed(lazy):
    """Compute a dask array and assemble it on the host, after checking that each block is on the device."""
    import dask

    assert isinstance(lazy._meta, FakeCupyArray) and lazy._meta.dtype == lazy.dtype
    assert lazy._meta.ndim == lazy.ndim
    blocks = lazy.to_delayed()
    results = dask.compute(*np.ravel(blocks).tolist(), scheduler="sync")
    for place, block in zip(np.ndindex(blocks.shape), results, strict=True):
        shape = tuple(sizes[i] for sizes, i in zip(lazy.chunks, place))
        assert isinstance(block, FakeCupyArray) and block.dtype == lazy.dtype
        assert all(n == size or np.isnan(size) for n, size in zip(block.shape, shape, strict=True))
    whole = np.empty(blocks.shape, object)
    for place, block in zip(np.ndindex(blocks.shape), results):
        whole[place] = block.host
    return np.block(whole.tolist()) if lazy.ndim else results[0].host
