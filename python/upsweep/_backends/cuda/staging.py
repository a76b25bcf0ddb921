"""Scans and counts of numpy arrays on a device: copied there, computed, copied back.

An array that repeats elements (strides of 0) is sent once. All copies are on the device's default stream; the
last one waits for the work before it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep._backends.cuda import aggregate_launch, bincount_sync, scan_launch

__all__ = ["Counter", "Memory", "run_histogram", "run_pairs", "run_reduce", "run_scan"]

Array = NDArray[Any]


class Memory:
    """Allocations of one call on its stream, freed together."""

    def __init__(self, device: int, stream: int = 0) -> None:
        self.device, self.stream, self.library = device, stream, scan_launch.load()
        self.taken: list[int] = []

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        pointer = ctypes.c_void_p()
        self.library.allocate(self.device, self.stream, n_bytes, ctypes.byref(pointer))
        self.taken.append(pointer.value or 0)
        return self.taken[-1], None

    def close(self) -> None:
        for pointer in reversed(self.taken):
            self.library.free(self.device, self.stream, pointer)

    def send(self, array: Array) -> scan_launch.DeviceArray:
        """The array on the device; axes that repeat elements keep a stride of 0."""
        repeats = [n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides)]
        once = array[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]
        data = np.ascontiguousarray(once, dtype=array.dtype.newbyteorder("="))
        sent = self.empty(data.shape, data.dtype)
        self.library.copy_to_device(self.device, self.stream, sent.pointer, data.ctypes.data, data.nbytes)
        strides = tuple(0 if repeat else stride for repeat, stride in zip(repeats, sent.strides))
        return sent._replace(shape=array.shape, strides=strides)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> scan_launch.DeviceArray:
        """Uninitialised memory for an array in C order."""
        strides: list[int] = []
        n_bytes = dtype.itemsize
        for n in reversed(shape):
            strides.insert(0, n_bytes)
            n_bytes *= max(n, 1)
        pointer, _ = self.allocate(n_bytes)
        return scan_launch.DeviceArray(pointer, shape, tuple(strides), dtype.name)

    def put(self, array: Array, target: scan_launch.DeviceArray) -> None:
        """Fill an array in C order."""
        data = np.ascontiguousarray(array)
        self.library.copy_to_device(self.device, self.stream, target.pointer, data.ctypes.data, data.nbytes)

    def fetch(self, source: scan_launch.DeviceArray, target: Array) -> None:
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
        problem = scan_launch.problem(
            x_sent, gates_sent, gamma_sent, initial_sent, reset_sent, y, last,
            axis=axis, reverse=reverse, exclusive=exclusive, window=window, device=device, stream=0,
        )  # fmt: skip
        scan_launch.run_scan(problem, memory.allocate)
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
        aggregate_launch.reduce(
            x_sent, gates_sent, gamma_sent, reset_sent, *results, axis=axis, reverse=reverse, device=device,
            stream=0, allocate=memory.allocate,
        )  # fmt: skip
        for result, target in zip(results, targets):
            memory.fetch(result, target)


def run_pairs(
    reduction: Any,
    arrays: Sequence[Array],
    n_i: int,
    n_j: int,
    batch: tuple[int, ...],
    ranges: Any,
    *,
    device: int,
) -> tuple[Array, ...]:
    """The results of a reduction over pairs; the arrays are of one dtype."""
    from upsweep._backends.cuda import pairs_launch  # with the compiler of formulas

    results = [
        np.empty(shape, dtype)
        for shape, dtype in pairs_launch.results_of(reduction, n_i, n_j, batch, arrays[0].dtype)
    ]
    if 0 in results[0].shape:
        return tuple(results)
    with contextlib.closing(Memory(device)) as memory:
        sent = [memory.send(array) for array in arrays]
        there = [memory.empty(result.shape, result.dtype) for result in results]
        pairs_launch.run(
            reduction, sent, there, n_i, n_j, batch, ranges, device=device, stream=0, allocate=memory.allocate
        )  # fmt: skip
        for made, result in zip(there, results):
            memory.fetch(made, result)
    return tuple(results)


def run_histogram(
    x: Array, weights: Array | None, thresholds: Array, counts: Array, *, device: int, origin: float = 0.0,
    scale: float = 0.0,
) -> None:  # fmt: skip
    """Fill `counts`: int64, or float64 or complex128 for such weights."""
    with contextlib.closing(Memory(device)) as memory:
        result = memory.empty(counts.shape, counts.dtype)
        # Each axis is sent in C order, so that the weights lie one stride apart.
        spread = None if weights is None else memory.send(np.ascontiguousarray(weights))
        bincount_sync.histogram(
            memory.send(x), memory.send(thresholds), result, memory.allocate, spread, origin=origin, scale=scale,
            device=device, stream=memory.stream,
        )  # fmt: skip
        memory.fetch(result, counts)


# ---- counts ----------------------------------------------------------------------------------------------------


class Counter:
    """One count of keys (..., n) and weights (..., n) or (..., n, k), in the steps of the CPU's own."""

    def __init__(
        self, keys: Array, weights: Array | None, *, with_sums: bool, integers: bool, n_bins: int, least: int,
        drop: bool, device: int, deterministic: bool,
    ) -> None:  # fmt: skip
        self.memory = Memory(device)
        self.n_bins, self.least, self.drop, self.deterministic = n_bins, least, drop, deterministic
        self.axis = keys.ndim - 1
        self.rows = keys.shape[:-1]
        self.negative = -1  # the position of the first negative key, once they have been looked at
        try:
            self.keys = self.memory.send(keys)
            self.weights = None if weights is None else self.memory.send(weights)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.memory.close()

    @property
    def _where(self) -> dict[str, int]:
        return {"device": self.memory.device, "stream": self.memory.stream}

    def look(self) -> tuple[int, bool]:
        """(number of bins, whether keys outside them have to be refused)."""
        if self.n_bins >= 0 and self.drop:
            return self.n_bins, False
        largest, negative = bincount_sync.find_range(
            self.keys, self.memory.allocate, axis=self.axis, **self._where
        )  # fmt: skip
        self.negative = negative
        n_bins = max(largest + 1, self.least) if self.n_bins < 0 else self.n_bins
        return n_bins, not self.drop and (negative >= 0 or largest >= n_bins)

    def first_outside(self, n_bins: int) -> int:
        """The position in C order of the first key that is negative or `n_bins` and more, -1: none."""
        if self.n_bins < 0:
            return self.negative
        return self._count(self._counts(n_bins), None, check=True)

    def count_outside(self, n_bins: int) -> int:
        """How many keys are negative or `n_bins` and more."""
        found = np.empty((), np.int64)
        dropped = self.memory.empty((), found.dtype)
        self._count(self._counts(n_bins), None, dropped=dropped.pointer)
        self.memory.fetch(dropped, found)
        return int(found)

    def write(self, result: Array, overwrite: bool) -> None:
        """Write counts or sums to the contiguous result, (..., bins) or (..., bins, k), or add them to it."""
        counted = self.memory.empty(result.shape, result.dtype)
        if self.weights is not None or result.ndim == len(self.rows) + 1:
            table = counted._replace(dtype=counted.dtype.replace("uint64", "int64"))
            self._count(table, self.weights)
            found = result if overwrite else np.empty_like(result)
            self.memory.fetch(counted, found)
        else:
            found = np.zeros_like(result)  # sums of no weights
        if found is not result:
            np.copyto(result, found) if overwrite else np.add(result, found, out=result)

    def _counts(self, n_bins: int) -> scan_launch.DeviceArray:
        return self.memory.empty((*self.rows, n_bins), np.dtype(np.int64))

    def _count(
        self, out: scan_launch.DeviceArray, weights: scan_launch.DeviceArray | None, check: bool = False,
        dropped: int | None = None,
    ) -> int:  # fmt: skip
        return bincount_sync.count(
            self.keys, out, self.memory.allocate, weights, axis=self.axis, check=check, dropped=dropped,
            deterministic=self.deterministic, **self._where,
        )  # fmt: skip
