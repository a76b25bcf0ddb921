"""Scans of numpy arrays on a device: copied there, computed, copied back.

An array that repeats elements (strides of 0) is sent once. All copies are on the device's default stream; the
last one waits for the work before it.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import _cuda
from upsweep._cuda import carries

__all__ = ["Memory", "run_reduce", "run_scan"]

Array = NDArray[Any]


class Memory:
    """Allocations of one call on its stream, freed together."""

    def __init__(self, device: int, stream: int = 0) -> None:
        self.device, self.stream, self.library = device, stream, _cuda.load()
        self.taken: list[int] = []

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        pointer = ctypes.c_void_p()
        self.library.allocate(self.device, self.stream, n_bytes, ctypes.byref(pointer))
        self.taken.append(pointer.value or 0)
        return self.taken[-1], None

    def close(self) -> None:
        for pointer in reversed(self.taken):
            self.library.free(self.device, self.stream, pointer)

    def send(self, array: Array) -> _cuda.DeviceArray:
        """The array on the device; axes that repeat elements keep a stride of 0."""
        repeats = [n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides)]
        once = array[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]
        data = np.ascontiguousarray(once, dtype=array.dtype.newbyteorder("="))
        sent = self.empty(data.shape, data.dtype)
        self.library.copy_to_device(self.device, self.stream, sent.pointer, data.ctypes.data, data.nbytes)
        strides = tuple(0 if repeat else stride for repeat, stride in zip(repeats, sent.strides))
        return sent._replace(shape=array.shape, strides=strides)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _cuda.DeviceArray:
        """Uninitialised memory for an array in C order."""
        strides: list[int] = []
        n_bytes = dtype.itemsize
        for n in reversed(shape):
            strides.insert(0, n_bytes)
            n_bytes *= max(n, 1)
        pointer, _ = self.allocate(n_bytes)
        return _cuda.DeviceArray(pointer, shape, tuple(strides), dtype.name)

    def fetch(self, source: _cuda.DeviceArray, target: Array) -> None:
        """Fill `target`, whatever its strides, from an array in C order."""
        direct = target.flags.c_contiguous and target.dtype.isnative
        landing = target if direct else np.empty(target.shape, target.dtype.newbyteorder("="))
        self.library.copy_to_host(self.device, self.stream, landing.ctypes.data, source.pointer, landing.nbytes)
        if landing is not target:
            target[...] = landing


def run_scan(
    x: Array,
    gates: Array | None,
    gamma: Array | None,
    initial: Array | None,
    reset: Array | None,
    out: Array,
    final: Array | None,
    *,
    axis: int,
    reverse: bool,
    exclusive: bool,
    window: int,
    device: int,
) -> None:
    """Fill `out` and `final`. x, gates, reset and out have one shape; the others lack its `axis`."""
    with contextlib.closing(Memory(device)) as memory:
        inputs = [None if array is None else memory.send(array) for array in (x, gates, gamma, initial, reset)]
        x_sent, gates_sent, gamma_sent, initial_sent, reset_sent = inputs
        assert x_sent is not None
        y = memory.empty(out.shape, out.dtype)
        last = None if final is None else memory.empty(final.shape, final.dtype)
        problem = _cuda.problem(
            x_sent, gates_sent, gamma_sent, initial_sent, reset_sent, y, last,
            axis=axis, reverse=reverse, exclusive=exclusive, window=window, device=device, stream=0,
        )  # fmt: skip
        _cuda.run_scan(problem, memory.allocate)
        memory.fetch(y, out)
        if final is not None and last is not None:
            memory.fetch(last, final)


def run_reduce(
    x: Array,
    gates: Array | None,
    gamma: Array | None,
    reset: Array | None,
    multiplier: Array,
    value: Array,
    dropped: Array,
    *,
    axis: int,
    reverse: bool,
    device: int,
) -> None:
    """Fill `multiplier`, `value` and `dropped`. x, gates and reset have one shape; the others lack its `axis`."""
    with contextlib.closing(Memory(device)) as memory:
        inputs = [None if array is None else memory.send(array) for array in (x, gates, gamma, reset)]
        x_sent, gates_sent, gamma_sent, reset_sent = inputs
        assert x_sent is not None
        targets = (multiplier, value, dropped)
        results = [memory.empty(target.shape, target.dtype) for target in targets]
        bits = [memory.send(np.array(bit, np.int8)) for bit in (0, 1)]
        carries.reduce(
            x_sent, gates_sent, gamma_sent, reset_sent, results, bits, axis=axis, reverse=reverse,
            device=device, stream=0, allocate=memory.allocate,
        )  # fmt: skip
        for result, target in zip(results, targets):
            memory.fetch(result, target)
