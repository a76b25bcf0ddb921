"""Counts of integer keys, sums of their weights and histograms on a device, described by pointers and strides.

Nothing here synchronises. Keys outside the bins are left out; how many they were, and where the first one is,
goes into memory of the device if it is asked for. Whoever calls brings the stream and a way to allocate.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

from upsweep._backends.cuda import abi
from upsweep._backends.cuda.library import load
from upsweep._backends.cuda.scan_launch import DeviceArray, check_device

__all__ = [
    "INTEGERS", "count", "describe", "describe_histogram", "histogram", "key_range", "plan", "plan_histogram",
    "read_value_range", "threshold_dtype", "value_range",
]  # fmt: skip

Allocate = Callable[[int], tuple[int, object]]

INTEGERS = frozenset(name for name in abi.DTYPES if name.rstrip("0123456789") in ("bool", "int", "uint"))

# Empty arrays may have no address, but to the library no address is no weights. Nothing reads this one.
_NOWHERE = 256


def _describe_array(target: abi.Array, array: DeviceArray, axis: int) -> None:
    target.data, target.dtype = array.pointer, abi.DTYPES[array.dtype]
    target.time_stride = array.strides[axis]
    batch = array.strides[:axis] + array.strides[axis + 1 :]
    target.batch_strides[: len(batch)] = batch


def _describe_weights(request: abi.Count, weights: DeviceArray, axis: int) -> None:
    request.n_columns = 1
    _describe_array(request.weights, weights, axis)
    request.weights.data = weights.pointer or _NOWHERE


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
        _describe_weights(request, weights, axis)
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


def _real_parts(weights: DeviceArray | None, out: DeviceArray) -> list[tuple[DeviceArray | None, DeviceArray]]:
    """Weights and where their sums go; of complex numbers the real parts, then the imaginary ones."""
    if weights is None or weights.dtype not in _PARTS:
        return [(weights, out)]
    return [(_part(weights, which), _part(out, which)) for which in (0, 1)]


def _give_workspace(request: abi.Count, answer: abi.CountPlan, allocate: Allocate) -> object:
    """Give the request the memory that its plan asks for; returns what keeps that memory."""
    request.workspace_bytes = answer.workspace_bytes
    if not answer.workspace_bytes:
        return None
    request.workspace, keep = allocate(answer.workspace_bytes)
    return keep


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
    bits on each run.

    `dropped` and `first_outside` are addresses of an int64 on the device: how many keys are outside the bins,
    and the position of the first one in C order (batch axes first, then `axis`), or -1. The second goes with the
    first. `allocate` is that of `run_scan`.
    """
    check_device(device)
    for of, into in _real_parts(weights, out):
        request = describe(
            keys, into, of, axis=axis, device=device, stream=stream, accumulate=accumulate,
            deterministic=deterministic, dropped=dropped, first_outside=first_outside,
        )  # fmt: skip
        keep = _give_workspace(request, plan(request), allocate)
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


# ---- histograms ------------------------------------------------------------------------------------------------


def threshold_dtype(dtype: str) -> str:
    """What elements of this dtype are compared in."""
    if dtype in ("int64", "uint64"):
        return dtype
    return "float64" if dtype in ("int32", "uint32", "float64") else "float32"


def describe_histogram(
    x: DeviceArray,
    thresholds: DeviceArray,
    out: DeviceArray,
    weights: DeviceArray | None = None,
    *,
    origin: float = 0.0,
    scale: float = 0.0,
    device: int,
    stream: int,
    accumulate: bool = False,
    deterministic: bool = False,
    dropped: int | None = None,
) -> abi.Histogram:
    """Describe the histogram of all elements of `x`; `out` has one axis, that of the bins."""
    assert thresholds.dtype == threshold_dtype(x.dtype), (thresholds.dtype, x.dtype)
    if not x.shape:
        x = x._replace(shape=(1,), strides=(0,))
        weights = weights and weights._replace(shape=(1,), strides=(0,))
    axis = len(x.shape) - 1
    request = abi.Histogram(count=describe(x, None, axis=axis, device=device, stream=stream))
    inner = request.count
    inner.accumulate, inner.deterministic, inner.dropped = accumulate, deterministic, dropped
    inner.n_bins = out.shape[0]
    _describe_array(inner.out, out, 0)
    if weights is not None:
        _describe_weights(inner, weights, axis)
    request.thresholds, request.n_thresholds = thresholds.pointer, thresholds.shape[0]
    request.origin, request.scale = origin, scale
    return request


def plan_histogram(request: abi.Histogram, n_processors: int = 0) -> abi.CountPlan:
    """How the library will count; its regime is 1 if the bins are found and counted in one pass."""
    answer = abi.CountPlan()
    load().plan_histogram(ctypes.byref(request), n_processors, ctypes.byref(answer))
    return answer


def histogram(
    x: DeviceArray,
    thresholds: DeviceArray,
    out: DeviceArray,
    allocate: Allocate,
    weights: DeviceArray | None = None,
    *,
    origin: float = 0.0,
    scale: float = 0.0,
    device: int,
    stream: int,
    accumulate: bool = False,
    deterministic: bool = False,
    dropped: int | None = None,
) -> None:
    """Start counting the elements of `x`, of any real dtype and shape, by their ranks among `thresholds`.

    An element's slot is the number of thresholds that are not above it; slot s counts in ``out[s - 1]`` if there
    is such a bin. Thresholds are contiguous, do not decrease and are of `threshold_dtype`. Where they are nearly
    even, ``int((x - origin) * scale + 0.5)`` is to be the number of the nearest one, which makes it faster; the
    device looks whether it is so.

    Weights, of x's shape, lie one stride apart; sums are as those of `count`, and so are the other arguments.
    """
    check_device(device)
    for of, into in _real_parts(weights, out):
        request = describe_histogram(
            x, thresholds, into, of, origin=origin, scale=scale, device=device, stream=stream,
            accumulate=accumulate, deterministic=deterministic, dropped=dropped,
        )  # fmt: skip
        keep = _give_workspace(request.count, plan_histogram(request), allocate)
        load().histogram(ctypes.byref(request))
        del keep


def value_range(x: DeviceArray, found: int, *, device: int, stream: int) -> None:
    """Start looking for the least and the largest element; `found` is the address of three int64, for the next."""
    check_device(device)
    if not x.shape:
        x = x._replace(shape=(1,), strides=(0,))
    request = describe(x, None, axis=len(x.shape) - 1, device=device, stream=stream)
    load().value_range(ctypes.byref(request), found)


def read_value_range(dtype: str, found: tuple[int, int, int]) -> tuple[float, float, int]:
    """Least and largest element, integers of integers; the position of the first that is not finite, or -1."""
    least, largest, first = found
    if dtype == "uint64":
        return least + 2**63, largest + 2**63, first
    if dtype == "int64":
        return least, largest, first
    low, high = (_from_ordered(bits) for bits in (least, largest))
    return (int(low), int(high), first) if dtype in INTEGERS else (low, high, first)


def _from_ordered(bits: int) -> float:
    """The float64 that was ordered as this int64: of negative ones all bits but the sign are flipped."""
    value: float = struct.unpack("=d", struct.pack("=q", bits ^ 0x7FFFFFFFFFFFFFFF if bits < 0 else bits))[0]
    return value
