"""Test doubles of a CUDA device: array libraries in host memory, and a CUDA library that runs on the CPU.

With them the code between a public function and the CUDA library (descriptors, strides, streams, results, order of
launches) runs without a GPU. `tests/cuda` tests the kernels themselves, on a GPU.
"""

import ctypes
import sys
import types
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from upsweep._arrays import interface
from upsweep._backends import cpu
from upsweep._backends.cuda import abi, bincount_launch, library
from upsweep._backends.cuda import bincount as cuda_bincount
from upsweep._backends.cuda import scan as cuda_scan

NAMES = {code: name for name, code in abi.DTYPES.items()}


def dtype_of(code):
    if NAMES[code] == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(NAMES[code])


class _Memory:
    def __init__(self, pointer, shape, strides, dtype):
        self.__array_interface__ = {
            "version": 3, "data": (pointer, False), "typestr": f"|V{dtype.itemsize}", "shape": shape,
            "strides": strides,
        }  # fmt: skip


def look(array, shape, axis=None, length=None):
    """An array of a request as a numpy array, with the scan axis last."""
    if not array.data:
        return None
    strides = tuple(array.batch_strides[: len(shape)])
    if axis is not None:
        shape, strides = (*shape, length), (*strides, array.time_stride)
    dtype = dtype_of(array.dtype)
    return np.asarray(_Memory(array.data, shape, strides, dtype)).view(dtype)


_load, find_installed = library.load, library.find


def check_by_library(plan, problem, answer):
    """Raise what the installed libupsweep_cuda.so raises for the request; its plans need no device."""
    if find_installed() is not None:
        processors = () if plan == "plan_reduce" else (132,)
        getattr(_load(), plan)(ctypes.byref(problem), *processors, ctypes.byref(answer))


def uniform_thresholds(p, kind):
    """The thresholds that the device computes for a request, whose edges are written."""
    n_bins = p.count.n_bins
    if p.rule == abi.HISTC:
        thresholds = np.empty(n_bins + 1, kind)
        cpu.histograms.find_linear_thresholds(np.array([p.first, p.last], kind), thresholds)
        return thresholds
    step_dtype, edge_dtype = dtype_of(p.step_dtype), dtype_of(p.edge_dtype)
    edges = np.asarray(_Memory(p.edges, (n_bins + 1,), None, edge_dtype)).view(edge_dtype)
    edges[:] = np.arange(n_bins + 1, dtype=step_dtype) * step_dtype.type(p.step) + step_dtype.type(p.first)
    edges[-1] = p.last
    values = edges.copy()
    values[-1] = np.nextafter(values[-1], edge_dtype.type(np.inf))
    thresholds = values.astype(kind)
    return np.where(thresholds < values, np.nextafter(thresholds, kind.type(np.inf)), thresholds)


class FakeCuda:
    """Stands in for libupsweep_cuda.so: the same problems, on the host's memory, through the CPU's kernels."""

    def __init__(self):
        self.device_of, self.problems, self.waited = {}, [], []
        self.counts, self.histograms, self.ranges, self.read_back = [], [], 0, 0
        self.memory = []

    def locate(self, pointer):
        for (begin, end), device in self.device_of.items():
            if begin <= pointer < end:
                return device
        return 0

    def place(self, array, device):
        begin = array.__array_interface__["data"][0]
        self.device_of[(begin, begin + max(array.nbytes, 1))] = device

    def device_check(self, device, name, capability):
        pass

    def plan_scan(self, request, n_processors, answer):
        check_by_library("plan_scan", request._obj, abi.Plan())
        answer._obj.workspace_bytes = 1000

    def plan_reduce(self, request, answer):
        check_by_library("plan_reduce", request._obj, abi.Plan())
        answer._obj.workspace_bytes = 1000

    def scan(self, request):
        p = request._obj
        self.problems.append(p)
        assert p.workspace
        shape = tuple(p.batch_shape[: p.n_batch])
        x, gates, reset, out = (look(a, shape, -1, p.length) for a in (p.x, p.gates, p.reset, p.out))
        gamma, initial, final = (look(a, shape) for a in (p.gamma, p.initial, p.final_state))
        if gates is None and gamma is None:
            number = complex(p.gamma_re, p.gamma_im)
            gamma = np.broadcast_to(number if number.imag else number.real, shape)
        if p.length == 0:
            final[...] = 0 if initial is None else initial
            return
        wide = {abi.REAL: np.float64, abi.COMPLEX: np.complex128, abi.INTEGER: np.int64}[p.accumulator]
        if out is None:
            out = np.empty((*shape, p.length), wide)
        if p.accumulator == abi.INTEGER:
            assert gates is not None or complex(p.gamma_re, p.gamma_im) == 1
            gamma = None if gates is not None else np.broadcast_to(np.int64(1), shape)
        last = np.empty(shape, np.result_type(wide))
        cpu.scans.scan(
            x, gates, gamma, initial, reset, out, last, None, axis=len(shape), reverse=bool(p.reverse),
            exclusive=bool(p.exclusive), flush=False, window=p.window, n_threads=1, accumulator=p.accumulator,
        )  # fmt: skip
        if final is not None:
            final[...] = last

    def reduce(self, request):
        r = request._obj
        p = r.scan
        self.problems.append(r)
        assert p.workspace
        shape = tuple(p.batch_shape[: p.n_batch])
        x, gates, reset = (look(a, shape, -1, p.length) for a in (p.x, p.gates, p.reset))
        gamma, initial, value, multiplier, dropped = (
            look(a, shape) for a in (p.gamma, p.initial, p.final_state, r.multiplier, r.dropped)
        )
        wide = {abi.REAL: np.float64, abi.COMPLEX: np.complex128, abi.INTEGER: np.int64}[p.accumulator]
        last, product, any_reset = np.zeros(shape, wide), np.ones(shape), np.zeros(shape, bool)
        if p.length == 0:
            last[...] = 0 if initial is None else initial
        else:
            if gates is None and gamma is None:
                number = complex(p.gamma_re, p.gamma_im)
                gamma = np.broadcast_to(number if number.imag else number.real, shape)
            if p.accumulator == abi.INTEGER:
                gamma = np.broadcast_to(np.int64(1), shape)
            factor = gamma if gates is None else gates
            product = np.ones(shape, wide if factor.dtype.kind == "c" or p.accumulator == abi.INTEGER else float)
            cpu.scans.scan(
                x, gates, gamma, initial, reset, None, last, product, axis=len(shape), reverse=bool(p.reverse),
                exclusive=False, flush=False, window=0, n_threads=1, accumulator=p.accumulator,
            )  # fmt: skip
        if reset is not None:
            np.any(reset, axis=-1, out=any_reset)
        product[any_reset] = 0
        for target, result in ((value, last), (multiplier, product), (dropped, any_reset)):
            if target is not None:
                target[...] = result

    # ---- counts

    def plan_count(self, request, n_processors, answer):
        answer._obj.workspace_bytes = 1000

    plan_histogram = plan_count

    def count(self, request):
        p = request._obj
        self.counts.append(p)
        check_by_library("plan_count", p, abi.CountPlan())
        assert p.workspace and bool(p.n_columns) == bool(p.weights.data)
        keys, out = self._rows(p.keys, p, p.length), self._rows(p.out, p, p.n_bins)
        wide = keys.astype(object)
        inside = np.array((wide >= 0) & (wide < p.n_bins), bool)
        if not p.n_columns:
            assert out is None or out.dtype == np.int64
            self._add(keys, inside, np.ones(keys.shape, np.int64), out, p.accumulate)
        for column in range(p.n_columns):
            weights = self._rows(p.weights, p, p.length, column * p.weights_column_stride)
            target = self._rows(p.out, p, p.n_bins, column * p.out_column_stride)
            assert weights.dtype.kind != "c" and target.dtype in (np.int64, np.float32, np.float64)
            assert weights.dtype.kind in "biu" or target.dtype != np.int64
            self._add(keys, inside, weights, target, p.accumulate)
        self._mark(p, ~inside.ravel())

    def _rows(self, array, p, length, offset=0):
        """An array of a request, with the counted axis last."""
        moved = abi.Array.from_buffer_copy(array)
        moved.data = (array.data or 0) + offset if array.data else None
        array = look(moved, tuple(p.batch_shape[: p.n_batch]), -1, length)
        return np.zeros((*p.batch_shape[: p.n_batch], length), np.int64) if array is None else array

    def _add(self, keys, inside, weights, out, accumulate):
        dtype = np.float64 if out.dtype.kind == "f" else np.int64
        wide = out.astype(dtype) if accumulate else np.zeros(out.shape, dtype)
        with np.errstate(over="ignore"):
            for row in np.ndindex(keys.shape[:-1]):
                memory = inside[row]
                np.add.at(wide[row], keys[row][memory].astype(np.int64), weights[row][memory].astype(wide.dtype))
        out[...] = wide

    def _mark(self, p, outside):
        for pointer, value in (
            (p.dropped, outside.sum()), (p.first_outside, outside.argmax() if outside.any() else -1),
        ):  # fmt: skip
            if pointer:
                ctypes.c_int64.from_address(pointer).value = int(value)

    def key_range(self, request, target):
        keys = self._rows(request._obj.keys, request._obj, request._obj.length).ravel()
        self.ranges += 1
        unsigned = keys.dtype.kind in "ub"
        negative = keys < 0
        largest = int(keys.max()) if keys.size and (unsigned or not negative.all()) else 0 if unsigned else -1
        first = int(negative.argmax()) if negative.any() else -1
        (ctypes.c_uint64 * 2).from_address(target)[:] = [largest % 2**64, first % 2**64]

    # ---- histograms

    def histogram(self, request):
        p, inner = request._obj, request._obj.count
        self.histograms.append(p)
        check_by_library("plan_histogram", p, abi.CountPlan())
        assert inner.workspace and bool(inner.n_columns) == bool(inner.weights.data)
        kind = np.dtype(bincount_launch.threshold_dtype(NAMES[inner.keys.dtype]))
        x = self._rows(inner.keys, inner, inner.length).ravel()
        if p.rule:
            thresholds = uniform_thresholds(p, kind)
        else:
            thresholds = np.asarray(_Memory(p.thresholds, (p.n_thresholds,), None, kind)).view(kind)
        slots = np.searchsorted(thresholds, x.astype(kind), side="right")
        slots[x != x] = 0
        out = look(inner.out, (), -1, inner.n_bins)
        assert out.ndim == 1 and out.dtype in (np.int64, np.float32, np.float64)
        assert inner.n_columns or out.dtype == np.int64 or not inner.accumulate
        ones = np.ones(x.shape, np.int64)
        weights = self._rows(inner.weights, inner, inner.length).ravel() if inner.n_columns else ones
        if inner.n_columns:  # one stride leads to all of them
            of = self._rows(inner.weights, inner, inner.length)
            steps = [(n, stride) for n, stride in zip(of.shape, of.strides) if n != 1]
            assert all(stride == n * step for (_, stride), (n, step) in pairwise(steps)) or not of.size
        inside = (slots > 0) & (slots <= inner.n_bins)
        self._add(slots[None] - 1, inside[None], weights[None], out[None], inner.accumulate)

    def value_range(self, request, target):
        x = self._rows(request._obj.keys, request._obj, request._obj.length).ravel()
        self.ranges += 1
        known = x[x == x]
        ends = np.array([known.min(), known.max()]) if known.size else np.array([np.inf, -np.inf])
        strange = ~np.isfinite(x.astype(float)) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        if x.dtype == np.uint64:
            ordered = [int(end) - 2**63 for end in ends]
        elif x.dtype == np.int64:
            ordered = [int(end) for end in ends]
        else:
            bits = ends.astype(np.float64).view(np.int64)
            ordered = [int(b) ^ 0x7FFF_FFFF_FFFF_FFFF if b < 0 else int(b) for b in bits]
        first = int(strange.argmax()) if strange.any() else -1
        (ctypes.c_int64 * 3).from_address(target)[:] = [*ordered, first]

    # ---- of the library, for memory that no array library gives

    def allocate(self, device, stream, n_bytes, pointer):
        self.memory.append(np.empty(n_bytes, np.uint8))
        pointer._obj.value = self.memory[-1].ctypes.data

    def free(self, device, stream, pointer):
        assert pointer

    def copy_to_device(self, device, stream, to, source, n_bytes):
        ctypes.memmove(to, source, n_bytes)

    def copy_to_host(self, device, stream, to, source, n_bytes):
        if n_bytes:
            self.read_back += 1
            ctypes.memmove(to, source, n_bytes)
        else:
            self.waited.append((device, stream))


@pytest.fixture
def fake_cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(library, "load", lambda: fake)
    monkeypatch.setattr(library, "find", lambda: find_installed() or Path(library.NAME))  # it counts as installed
    monkeypatch.setattr(library, "_checked", set())  # a device that the fixture accepts may not exist
    monkeypatch.setattr(interface, "_device_of", fake.locate)
    return fake


class Interface:
    """An array that has nothing but ``__cuda_array_interface__``."""

    def __init__(self, array, stream=None, read_only=False, **changes):
        self.array = array
        host = dict(array.__array_interface__)
        self.__cuda_array_interface__ = {
            "shape": host["shape"], "typestr": host["typestr"], "data": (host["data"][0], read_only), "version": 3,
            "strides": host["strides"], "stream": stream, **changes,
        }  # fmt: skip


class _Stream:
    def __init__(self, ptr):
        self.ptr = ptr


class FakeCupyArray:
    __array_ufunc__ = None

    def __init__(self, array, device):
        self.host, self.device = array, types.SimpleNamespace(id=device)
        self.data = types.SimpleNamespace(ptr=array.__array_interface__["data"][0])
        self.shape, self.strides, self.dtype, self.ndim = array.shape, array.strides, array.dtype, array.ndim

    def __array__(self, *arguments, **keywords):
        raise AssertionError("an array of cupy is not read by numpy")

    def __dlpack__(self, **keywords):
        raise AssertionError("an array of cupy is read where it lies")

    def __dlpack_device__(self):
        return (2, self.device.id)


def _hosted(value):
    return value.host if isinstance(value, FakeCupyArray) else value


def _method(name):
    def method(self, *arguments, **keywords):
        result = getattr(self.host, name)(*map(_hosted, arguments), **keywords)
        return FakeCupyArray(np.asarray(result), self.device.id)

    return method


for _name in ("astype", "reshape", "transpose", "sum", "__getitem__", "__add__", "__mul__", "__eq__", "__lt__"):
    setattr(FakeCupyArray, _name, _method(_name))


@pytest.fixture
def fake_cupy(monkeypatch, fake_cuda):
    cupy = types.ModuleType("cupy")
    cupy.ndarray, cupy.stream, cupy.current = FakeCupyArray, 77, [0]

    class Device:
        mem_info = (1 << 33, 1 << 34)

        def __init__(self, ordinal):
            self.ordinal = ordinal

        def __enter__(self):
            cupy.current.append(self.ordinal)

        def __exit__(self, *error):
            cupy.current.pop()

    def new(make):
        return lambda *arguments: FakeCupyArray(np.asarray(make(*arguments)), cupy.current[-1])

    def calculate(function):
        def calculated(*arguments, **keywords):
            assert {each.device.id for each in arguments if isinstance(each, FakeCupyArray)} == {cupy.current[-1]}
            return FakeCupyArray(np.asarray(function(*map(_hosted, arguments), **keywords)), cupy.current[-1])

        return calculated

    for name in ("empty", "full", "asarray", "zeros", "arange"):
        setattr(cupy, name, new(getattr(np, name)))
    cupy.stack = lambda arrays, axis: FakeCupyArray(np.stack([a.host for a in arrays], axis), cupy.current[-1])
    for name in ("zeros_like", "ones_like", "where", "broadcast_to", "repeat", "take_along_axis", "maximum"):
        setattr(cupy, name, calculate(getattr(np, name)))
    cupy.cuda = types.SimpleNamespace(Device=Device, get_current_stream=lambda: _Stream(cupy.stream))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    # The short path calls a library in C, and has tests of its own (cuda/test_cupy_calls.py).
    for executor in (cuda_scan, cuda_bincount):
        monkeypatch.setattr(executor, "register_short_path", lambda result: None)
    return cupy


class DLPackArray:
    """An array that only DLPack describes; nothing writes to it."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype

    def __dlpack__(self, **keywords):
        # numpy 2.0 imports arrays as read-only ones, and exports none that are.
        return (self.array if self.array.flags.writeable else self.array.copy()).__dlpack__()

    def __dlpack_device__(self):
        return self.device

    def __array__(self, dtype=None, copy=None):
        return self.array

    def __array_namespace__(self):
        return DLPackLibrary

    def __getitem__(self, index):
        return DLPackArray(self.array[index], self.device)


class DLPackLibrary:
    """The namespace of that library."""

    @staticmethod
    def from_dlpack(array):
        assert array.flags.c_contiguous
        return DLPackArray(np.from_dlpack(array))

    @staticmethod
    def asarray(array, device):
        return DLPackArray(np.array(array), device)
