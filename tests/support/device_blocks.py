"""dask arrays whose blocks are (what stands for) cupy's: numpy's functions of them, and what is read and sent."""

import numpy as np
import pytest
from devices import FakeCupyArray


def hosted(value):
    """What is in the memory of the stand-ins among these."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(hosted, value))
    return value.host if isinstance(value, FakeCupyArray) else value


class Crossings:
    """What goes between host and device: the elements that are read, one by one, and the arrays that are sent."""

    def __init__(self):
        self.read, self.sent = 0, []


def _refuse_numpy(values):
    """cupy takes numbers beside its arrays, and none of numpy's arrays."""
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")


def _made(array):
    """On the current device, or where it is."""
    return FakeCupyArray(np.asarray(array), 0)


def _by_ufunc(self, ufunc, method, *inputs, **keywords):
    _refuse_numpy(inputs)
    assert method == "__call__"
    return _made(ufunc(*map(hosted, inputs), **keywords))


def _by_function(crossings, self, function, types, arguments, keywords):
    if function in (np.ndim, np.shape, np.isscalar):
        return function(*map(hosted, arguments))
    if function is np.asarray:  # with like=, the way to send one
        crossings.sent.append(arguments[0].size)
    else:
        _refuse_numpy(arguments)
    return _made(function(*hosted(arguments), **keywords))


def _method(name):
    def method(self, *arguments, **keywords):
        _refuse_numpy(arguments)
        return _made(getattr(self.host, name)(*map(hosted, arguments), **keywords))

    return method


_METHODS = (
    "min", "max", "all", "any", "copy", "ravel", "__sub__", "__rsub__", "__truediv__", "__rtruediv__", "__rmul__",
    "__radd__", "__neg__", "__and__", "__or__", "__invert__", "__gt__", "__ge__", "__le__", "__ne__", "swapaxes",
)  # fmt: skip


@pytest.fixture
def crossings(monkeypatch, fake_cupy):
    """cupy's arrays under numpy's functions and operators; what of them crosses."""
    found = Crossings()
    monkeypatch.setattr(FakeCupyArray, "__array_ufunc__", _by_ufunc)
    monkeypatch.setattr(
        FakeCupyArray, "__array_function__", lambda self, *given: _by_function(found, self, *given), raising=False
    )
    for name in _METHODS:
        monkeypatch.setattr(FakeCupyArray, name, _method(name), raising=False)

    def read(convert):
        def one(self):
            found.read += 1
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
    return found


@pytest.fixture
def cupy_blocks(crossings):
    """From an array to a dask array whose blocks are (what stands for) cupy's."""
    import dask.array as da

    def sent(array, chunks):
        lazy = da.from_array(array, chunks=chunks)
        meta = FakeCupyArray(np.empty((0,) * array.ndim, array.dtype), 0)
        return lazy.map_blocks(lambda block: FakeCupyArray(block.copy(), 0), dtype=array.dtype, meta=meta)

    return sent


def computed(lazy):
    """The array, put together on the host; each of its blocks lies on the device."""
    import dask

    assert isinstance(lazy._meta, FakeCupyArray) and lazy._meta.dtype == lazy.dtype
    assert lazy._meta.ndim == lazy.ndim
    blocks = lazy.to_delayed()
    found = dask.compute(*np.ravel(blocks).tolist(), scheduler="sync")
    for place, block in zip(np.ndindex(blocks.shape), found, strict=True):
        shape = tuple(sizes[i] for sizes, i in zip(lazy.chunks, place))
        assert isinstance(block, FakeCupyArray) and block.dtype == lazy.dtype and block.shape == shape
    whole = np.empty(blocks.shape, object)
    for place, block in zip(np.ndindex(blocks.shape), found):
        whole[place] = block.host
    return np.block(whole.tolist()) if lazy.ndim else found[0].host
