"""Counts of integer keys and sums of their weights on a device, described by pointers and strides.

Nothing here synchronises. Keys outside the bins are left out; how many they were, and where the first one is,
goes into memory of the device if it is asked for. Whoever calls brings the stream and a way to allocate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from upsweep._cuda import DeviceArray, abi, check_device
from upsweep._cuda.library import load

__all__ = ["INTEGERS", "count", "describe", "key_range", "plan"]

Allocate = Callable[[int], tuple[int, object]]

INTEGERS = frozenset(name for name in abi.DTYPES if name.rstrip("0123456789") in ("bool", "int", "uint"))


def _describe_array(target: abi.Array, array: DeviceArray, axis: int) -> None:
    target.data, target.dtype = array.pointer, abi.DTYPES[array.dtype]
    target.time_stride = array.strides[axis]
    batch = array.strides[:axis] + array.strides[axis + 1 :]
    target.batch_strides[: len(batch)] = batch


def describe(
    keys: DeviceArray,
    out: DeviceArray | None,
    weights: DeviceArray | None = None,
    *,
    axis: int,
    device: int,
    stream: int,
    accumulate: bool = False,
    deterministic: bool = False,
    dropped: int | None = None,
    first_outside: int | None = None,
) -> abi.Count:
    """Describe a count along `axis`, which is that of the bins in `out`. Without `out` only the keys."""
    request = abi.Count()
    request.device, request.stream, request.accumulate = device, stream, accumulate
    request.deterministic = deterministic
    request.length = keys.shape[axis]
    batch = keys.shape[:axis] + keys.shape[axis + 1 :]
    request.n_batch = len(batch)
    request.batch_shape[: len(batch)] = batch
    _describe_array(request.keys, keys, axis)
    if out is not None:
        request.n_bins = out.shape[axis]
        _describe_array(request.out, out, axis)
    if weights is not None and out is not None:
        request.n_columns = 1
        _describe_array(request.weights, weights, axis)
        if len(weights.shape) > len(keys.shape):  # the columns come last, in both
            request.n_columns = weights.shape[-1]
            request.weights_column_stride, request.out_column_stride = weights.strides[-1], out.strides[-1]
    request.dropped, request.first_outside = dropped, first_outside
    return request


def plan(request: abi.Count, n_processors: int = 0) -> abi.CountPlan:
    """How the library will count; with `n_processors` no device is looked at."""
    answer = abi.CountPlan()
    load().plan_count(ctypes.byref(request), n_processors, ctypes.byref(answer))
    return answer


_PARTS = {"complex64": ("float32", 4), "complex128": ("float64", 8)}


def _part(array: DeviceArray, which: int) -> DeviceArray:
    """The real (0) or imaginary part of complex numbers."""
    dtype, size = _PARTS[array.dtype]
    return array._replace(pointer=array.pointer + which * size, dtype=dtype)


def count(
    keys: DeviceArray,
    out: DeviceArray,
    allocate: Allocate,
    weights: DeviceArray | None = None,
    *,
    axis: int = 0,
    device: int,
    stream: int,
    accumulate: bool = False,
    deterministic: bool = False,
    dropped: int | None = None,
    first_outside: int | None = None,
) -> None:
    """Start counting the keys along `axis` into `out`, int64, whose size along `axis` is the number of bins.

    With `weights`, of the keys' shape, their sums: of floats into float32 or float64, summed in float64, of
    complex numbers into complex ones, of integers into int64 (exactly, wrapping) or floats. Weights and `out` may
    have one more axis, the last, for several sums at once. Unless `deterministic`, sums of floats may have other
    bits on each run where the bins are many.

    `dropped` and `first_outside` are addresses of an int64 on the device: how many keys are outside the bins,
    and the position of the first one in C order (batch axes first, then `axis`), or -1. The second goes with the
    first. `allocate` is that of `run_scan`.
    """
    check_device(device)
    pairs: list[tuple[DeviceArray | None, DeviceArray]] = [(weights, out)]
    if weights is not None and weights.dtype in _PARTS:
        pairs = [(_part(weights, which), _part(out, which)) for which in (0, 1)]
    for of, into in pairs:
        request = describe(
            keys, into, of, axis=axis, device=device, stream=stream, accumulate=accumulate,
            deterministic=deterministic, dropped=dropped, first_outside=first_outside,
        )  # fmt: skip
        request.workspace_bytes = plan(request).workspace_bytes
        keep = None
        if request.workspace_bytes:
            request.workspace, keep = allocate(request.workspace_bytes)
        load().count(ctypes.byref(request))
        del keep


def key_range(keys: DeviceArray, found: int, *, axis: int = 0, device: int, stream: int) -> None:
    """Start looking for the largest key and the first negative one; `found` is the address of two int64.

    The first is the largest key, its 64 bits those of a uint64 if the keys are unsigned (0 if there are none),
    else -1 where no key is at least 0. The second is the position of the first negative key in C order, or -1.
    """
    check_device(device)
    request = describe(keys, None, axis=axis, device=device, stream=stream)
    load().key_range(ctypes.byref(request), found)
