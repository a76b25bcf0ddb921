"""Hazard: the short path of cupy arrays reads other memory than theirs, or gives what the general path does not.

Arrays of the host stand for cupy's, and functions of Python for those of the library.
"""

import contextlib
import sys
import types

import numpy as np
import pytest
import upsweep
from call_library import STREAM, FakeLibrary
from upsweep._arrays import dispatch
from upsweep._arrays.cupy import CUPY
from upsweep._backends.cuda import cupy_calls


class Array:
    """What `CupyCalls` reads of a cupy array, on memory of the host."""

    class Memory:
        def __init__(self, ptr, device_id):
            self.ptr, self.device_id = ptr, device_id

    def __init__(self, shape, dtype=float, memory=None, device=0):
        self.memory = np.empty(shape, dtype) if memory is None else memory
        self.dtype, self.itemsize, self.shape = self.memory.dtype, self.memory.itemsize, self.memory.shape
        self.strides, self.data = self.memory.strides, self.Memory(self.memory.ctypes.data, device)
        self.device = types.SimpleNamespace(id=device)


@pytest.fixture
def library():
    return FakeLibrary()


@pytest.fixture
def cupy(library, monkeypatch):
    """A module that has what the short path takes of cupy's; device 0 is the current one."""
    module = types.ModuleType("cupy")
    device = types.SimpleNamespace(get_device_id=lambda: 0)
    module.ndarray = Array
    module.cuda = types.SimpleNamespace(
        device=device, get_current_stream=lambda: types.SimpleNamespace(ptr=STREAM),
        Device=lambda ordinal: contextlib.nullcontext(),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(cupy_calls.library, "load", lambda: library)
    monkeypatch.setattr(cupy_calls.library, "check_device", lambda device: None)
    monkeypatch.setattr(type(CUPY), "workspace", lambda self, n, device: library.workspace(n, "cpu"))
    monkeypatch.setattr(
        type(CUPY), "new", lambda self, shape, dtype, device, stream: Array(shape, dtype, None, device)
    )
    cupy_calls.register_short_path(np.zeros(3))
    assert Array not in dispatch.plain_scans
    cupy_calls.register_short_path(Array(3))
    yield module
    del dispatch.plain_scans[Array], dispatch.plain_counts[Array]


def test_cupy_arrays(cupy, library):
    values = np.random.default_rng(1).random((3, 7))
    for dtype in (np.float32, np.float64):
        x = Array(None, memory=values.astype(dtype))
        for reverse in (False, True):
            for y, expected in (
                (upsweep.cumulative_sum(x, reverse=reverse), upsweep.cumulative_sum(x.memory, reverse=reverse)),
                (upsweep.linear_recurrence(x, x, reverse=reverse),
                 upsweep.linear_recurrence(x.memory, x.memory, reverse=reverse)),
                (upsweep.discounted_cumsum(x, 0.5, reverse=reverse, out=Array((3, 7), dtype)),
                 upsweep.discounted_cumsum(x.memory, 0.5, reverse=reverse)),
            ):  # fmt: skip
                assert type(y) is Array and y.memory.dtype == dtype
                np.testing.assert_allclose(y.memory, expected, rtol=1e-5)
                assert library.requests[-1].stream == STREAM
    keys, weights = np.array([3, 0, 3, 7]), np.array([0.5, 1.0, 2.0, 4.0])
    for n_bins, keywords in ((8, {}), (9, {"length": 9}), (4, {"length": 4, "invalid": "drop"})):
        for summands in (None, weights):
            y = upsweep.bincount(
                Array(None, memory=keys), None if summands is None else Array(None, memory=summands), **keywords
            )
            expected = np.bincount(keys, summands)
            np.testing.assert_array_equal(y.memory, np.pad(expected, (0, 2))[:n_bins])


def test_gates_of_none_are_refused(cupy, library):
    with pytest.raises(TypeError, match="gates"):
        upsweep.linear_recurrence(None, Array(None, memory=np.ones((3, 7), np.float32)))
    assert not library.requests


def test_the_layout_of_a_cupy_array(cupy, library):
    values = np.random.default_rng(1).random((4, 6))
    for memory in (values.T, values[:, ::2], values[::-1], np.arange(24, dtype=np.int32).reshape(4, 6)):
        x = Array(None, memory=memory)
        plain = dispatch.plain_scans[Array]
        cupy.empty_like = lambda array, dtype: Array(None, memory=np.empty_like(array.memory, dtype))
        y, final = plain(x, None, 1.0, 0, False, False, None, None, None, False, True)
        request = library.requests[-1]
        assert (request.x.data, request.x.time_stride) == (memory.ctypes.data, memory.strides[0])
        assert request.x.batch_strides[0] == memory.strides[1] and final.shape == memory.shape[1:]
        assert y.memory.strides == np.empty_like(memory, y.dtype).strides
    n = len(library.requests)
    fields = np.zeros(5, np.dtype([("a", "f8"), ("b", "i1")]))
    swapped = values.astype(values.dtype.newbyteorder())
    for memory in (fields["a"], swapped, values.astype(np.float16), values > 0.5, values.astype(np.uint64)):
        assert (
            plain(Array(None, memory=memory), None, 1.0, 0, False, False, None, None, None, False, False) is None
        )
    x = Array(None, memory=values)
    assert plain(x, None, 1.0, 0, False, False, None, 2, None, False, False) is None  # n_threads
    assert dispatch.plain_counts[Array](
        Array(None, memory=np.arange(24)), Array(None, memory=np.ones(24, np.float32)), 0, None, "raise", False
    ) is None  # fmt: skip
    assert len(library.requests) == n


def test_results_lie_on_the_device_of_the_array(cupy, library):
    """`empty_here` allocates on the current device, 0."""
    x = Array(None, memory=np.ones((3, 4)), device=1)
    cupy_calls.CUPY.stream = lambda device: 10 + device
    try:
        y = dispatch.plain_scans[Array](x, None, 1.0, None, False, False, None, None, None, False, False)
    finally:
        del cupy_calls.CUPY.stream
    assert y.device.id == 1 and (library.requests[-1].device, library.requests[-1].stream) == (1, 11)
