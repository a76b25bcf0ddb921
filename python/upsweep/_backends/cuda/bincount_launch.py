"""C interface of counts and histograms: requests from array descriptors, plans and launches.

Keys outside the bins are not counted; how many there are, and the position of the first one, is written to device
memory if the caller asks for it. Only `find_range`, `find_extremes` and `read_words` wait for the stream.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from upsweep._backends.cuda import abi, library
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor
from upsweep._core.bin_thresholds import UniformBins

INTEGERS = frozenset(name for name in abi.DTYPES if name.rstrip("0123456789") in ("bool", "int", "uint"))

# Empty arrays may have no address, but to the library no address means no weights. Nothing reads this one.
_NO_MEMORY = 256
_FLOAT_CODES = {np.dtype(name): abi.DTYPES[name] for name in ("float32", "float64")}
WORD = 8  # bytes of an int64 that is read back


def _describe_weights(request: abi.Count, weights: ArrayDescriptor, axis: int) -> None:
    request.n_columns = 1
    abi.fill_array(request.weights, weights, axis)
    request.weights.data = weights.pointer or _NO_MEMORY


def describe(
    keys: ArrayDescriptor, out: ArrayDescriptor | None, weights: ArrayDescriptor | None = None, *, axis: int = 0,
    device: int, stream: int, accumulate: bool = False, deterministic: bool = False, dropped: int | None = None,
    first_outside: int | None = None,
) -> abi.Count:  # fmt: skip
    """Return the request for a count along `axis`, which is the bins' axis in `out`.

    Without `out` the request describes the keys only.

    `weights` have the keys' shape; weights and `out` may have one more axis, the last, for several sums at once.
    `dropped` and `first_outside` are addresses of an int64 on the device: the number of keys outside the bins, and
    the position of the first one in C order (batch axes first, then `axis`), or -1. The second needs the first.
    """
    request = abi.Count(
        device=device, stream=stream, accumulate=accumulate, deterministic=deterministic, dropped=dropped,
        first_outside=first_outside, length=keys.shape[axis],
    )  # fmt: skip
    batch = keys.shape[:axis] + keys.shape[axis + 1 :]
    if batch:
        request.n_batch = len(batch)
        request.batch_shape[: len(batch)] = batch
    abi.fill_array(request.keys, keys, axis)
    if out is not None:
        request.n_bins = out.shape[axis]
        abi.fill_array(request.out, out, axis)
    if weights is not None and out is not None:
        _describe_weights(request, weights, axis)
        if len(weights.shape) > len(keys.shape):
            request.n_columns = weights.shape[-1]
            request.weights_column_stride, request.out_column_stride = weights.strides[-1], out.strides[-1]
    return request


def plan(request: abi.Count, n_processors: int = 0) -> abi.CountPlan:
    """Return how the library will count; with `n_processors` it queries no device."""
    return abi.ask(library.load().plan_count, request, n_processors, answer=abi.CountPlan())


_PARTS = {"complex64": ("float32", 4), "complex128": ("float64", 8)}


def _part(array: ArrayDescriptor, index: int) -> ArrayDescriptor:
    """Return the real (0) or imaginary part of complex numbers."""
    dtype, size = _PARTS[array.dtype]
    return array._replace(pointer=array.pointer + index * size, dtype=dtype)


def _real_parts(
    weights: ArrayDescriptor | None, out: ArrayDescriptor
) -> list[tuple[ArrayDescriptor | None, ArrayDescriptor]]:
    """Return weights and their sums; of complex numbers the real parts, then the imaginary ones."""
    if weights is None or weights.dtype not in _PARTS:
        return [(weights, out)]
    return [(_part(weights, index), _part(out, index)) for index in (0, 1)]


def count(
    keys: ArrayDescriptor, out: ArrayDescriptor, *, weights: ArrayDescriptor | None = None, allocate: Allocate,
    device: int, **options: Any,
) -> None:  # fmt: skip
    """Start counting keys into `out`, int64, or summing their weights; the options are those of `describe`.

    Floats are summed in float64 into float32 or float64, complex numbers into complex ones, integers into int64
    (exactly, wrapping) or floats. Unless `deterministic`, the bits of sums of floats may differ between runs.
    """
    library.check_device(device)
    for summands, sums in _real_parts(weights, out):
        request = describe(keys, sums, summands, device=device, **options)
        request.workspace_bytes = plan(request).workspace_bytes
        abi.call_with_workspace(library.load().count, request, request, allocate)


def read_words(pointer: int, n_words: int, device: int, stream: int) -> tuple[int, ...]:
    """Return int64 of device memory, once the work on the stream is done."""
    return struct.unpack(f"={n_words}q", library.read_bytes(pointer, n_words * WORD, device, stream))


def read_range(
    function: str, x: ArrayDescriptor, n_words: int, *, axis: int, device: int, stream: int, allocate: Allocate
) -> tuple[int, ...]:
    """Return the int64 that a function of the library finds in elements: `key_range` or `value_range`.

    Those of `key_range` are the largest key, with the 64 bits of a uint64 if the keys are unsigned (0 if there are
    none), else -1 if no key is at least 0; and the position of the first negative key in C order, or -1.
    """
    pointer, keep_alive = allocate(n_words * WORD)
    library.check_device(device)
    request = describe(x, None, axis=axis, device=device, stream=stream)
    getattr(library.load(), function)(ctypes.byref(request), pointer)
    words = read_words(pointer, n_words, device, stream)
    del keep_alive
    return words


def find_range(keys: ArrayDescriptor, **resources: Any) -> tuple[int, int]:
    """Return the largest key (negative if all are), and the position of the first negative key, or -1."""
    if 0 in keys.shape:
        return -1, -1
    largest, first_negative = read_range("key_range", keys, 2, **resources)
    return largest % 2**64 if keys.dtype.startswith(("uint", "bool")) else largest, first_negative


# ---- histograms ------------------------------------------------------------------------------------------------


def threshold_dtype(dtype: str) -> str:
    """Return the dtype in which elements of this dtype are compared."""
    if dtype in ("int64", "uint64"):
        return dtype
    return "float64" if dtype in ("int32", "uint32", "float64") else "float32"


def _at_least_1d(array: ArrayDescriptor) -> ArrayDescriptor:
    return array if array.shape else array._replace(shape=(1,), strides=(0,))


def describe_histogram(
    x: ArrayDescriptor, thresholds: ArrayDescriptor | UniformBins, out: ArrayDescriptor,
    weights: ArrayDescriptor | None = None, *, origin: float = 0.0, scale: float = 0.0,
    edges: ArrayDescriptor | None = None, **options: Any,
) -> abi.Histogram:  # fmt: skip
    """Return the request for the histogram of all elements of `x`, of any real dtype and shape.

    Parameters
    ----------
    thresholds : ArrayDescriptor or UniformBins
        Bins of one width, whose thresholds the device computes; or an array, contiguous and not decreasing, of
        `threshold_dtype`. An element's slot is the number of thresholds that are not above it; slot s counts in
        ``out[s - 1]`` if there is such a bin.
    out : ArrayDescriptor
        One axis, that of the bins.
    weights : ArrayDescriptor, optional
        Of x's shape, one stride apart.
    origin, scale : float, optional
        A hint for thresholds that are nearly even: ``int((x - origin) * scale + 0.5)`` estimates the number of the
        nearest one. The device checks the estimate.
    edges : ArrayDescriptor, optional
        Contiguous; the edges of uniform bins of np.histogram are written to it.
    **options
        As for `describe`.
    """
    x, weights = _at_least_1d(x), weights and _at_least_1d(weights)
    axis = len(x.shape) - 1
    request = abi.Histogram(count=describe(x, None, axis=axis, **options))
    if isinstance(thresholds, UniformBins):
        _describe_uniform(request, thresholds, edges.pointer if edges else 0)
    else:
        assert thresholds.dtype == threshold_dtype(x.dtype), (thresholds.dtype, x.dtype)
        request.thresholds, request.n_thresholds = thresholds.pointer, thresholds.shape[0]
        request.origin, request.scale = origin, scale
    request.count.n_bins = out.shape[0]
    abi.fill_array(request.count.out, out, 0)
    if weights is not None:
        _describe_weights(request.count, weights, axis)
    return request


def _describe_uniform(request: abi.Histogram, bins: UniformBins, edges: int) -> None:
    request.rule, request.first, request.last = abi.HISTC, bins.first, bins.last
    if bins.edge_dtype is not None:
        request.rule, request.step, request.edges = abi.HISTOGRAM, bins.step, edges
        request.step_dtype, request.edge_dtype = _FLOAT_CODES[bins.step_dtype], _FLOAT_CODES[bins.edge_dtype]


def plan_histogram(request: abi.Histogram, n_processors: int = 0) -> abi.CountPlan:
    """Return how the library will count; its regime is 1 if bins are searched and counted in one pass."""
    return abi.ask(library.load().plan_histogram, request, n_processors, answer=abi.CountPlan())


def histogram(
    x: ArrayDescriptor, thresholds: ArrayDescriptor | UniformBins, out: ArrayDescriptor, *,
    weights: ArrayDescriptor | None = None, allocate: Allocate, device: int, **options: Any,
) -> None:  # fmt: skip
    """Start a histogram; the options are those of `describe_histogram`, sums are those of `count`."""
    library.check_device(device)
    for summands, sums in _real_parts(weights, out):
        request = describe_histogram(x, thresholds, sums, summands, device=device, **options)
        request.count.workspace_bytes = plan_histogram(request).workspace_bytes
        abi.call_with_workspace(library.load().histogram, request, request.count, allocate)


def find_extremes(x: ArrayDescriptor, **resources: Any) -> tuple[float, float, int]:
    """Return the least and the largest element, and the position of the first one that is not finite, or -1."""
    x = _at_least_1d(x)
    least, largest, first = read_range("value_range", x, 3, axis=len(x.shape) - 1, **resources)
    if x.dtype == "uint64":
        return least + 2**63, largest + 2**63, first
    if x.dtype == "int64":
        return least, largest, first
    low, high = (_from_ordered(bits) for bits in (least, largest))
    return (int(low), int(high), first) if x.dtype in INTEGERS else (low, high, first)


def _from_ordered(bits: int) -> float:
    """Return the float64 that was ordered as this int64: of negative ones all bits but the sign are flipped."""
    value: float = struct.unpack("=d", struct.pack("=q", bits ^ 0x7FFFFFFFFFFFFFFF if bits < 0 else bits))[0]
    return value
