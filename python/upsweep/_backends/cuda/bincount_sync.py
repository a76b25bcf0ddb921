"""Counts that have to know something of the keys before they go on: what is read back, and when.

To read back waits for the stream, once a call: that is why each function here gets all that it asks for at once.
"""

from __future__ import annotations

import ctypes
from typing import Any

from upsweep._backends.cuda import bincount_launch
from upsweep._backends.cuda.library import load
from upsweep._backends.cuda.scan_launch import DeviceArray

__all__ = ["count", "find_extremes", "find_range", "histogram", "read_element"]

histogram = bincount_launch.histogram
Allocate = bincount_launch.Allocate
_WORD = 8  # bytes


def _read(pointer: int, n_words: int, device: int, stream: int) -> list[int]:
    """So many int64, when the work on the stream is done."""
    found = (ctypes.c_int64 * n_words)()
    load().copy_to_host(device, stream, found, pointer, n_words * _WORD)
    return list(found)


def read_element(
    array: DeviceArray, index: tuple[int, ...], itemsize: int, *, device: int, stream: int
) -> bytes:  # fmt: skip
    """The bytes of an element."""
    target = (ctypes.c_char * itemsize)()
    at = array.pointer + sum(i * stride for i, stride in zip(index, array.strides))
    load().copy_to_host(device, stream, target, at, itemsize)
    return target.raw


def find_range(
    keys: DeviceArray, allocate: Allocate, *, axis: int, device: int, stream: int
) -> tuple[int, int]:  # fmt: skip
    """The largest key (negative where none is from 0 on), and the position of the first negative one, or -1."""
    if 0 in keys.shape:
        return -1, -1
    pointer, keep = allocate(2 * _WORD)
    bincount_launch.key_range(keys, pointer, axis=axis, device=device, stream=stream)
    largest, first_negative = _read(pointer, 2, device, stream)
    del keep
    return largest % 2**64 if keys.dtype.startswith(("uint", "bool")) else largest, first_negative


def find_extremes(
    x: DeviceArray, allocate: Allocate, *, device: int, stream: int
) -> tuple[float, float, int]:  # fmt: skip
    """Least and largest of at least one element, and the position of the first that is not finite, or -1."""
    pointer, keep = allocate(3 * _WORD)
    bincount_launch.value_range(x, pointer, device=device, stream=stream)
    least, largest, first = _read(pointer, 3, device, stream)
    del keep
    return bincount_launch.read_value_range(x.dtype, (least, largest, first))


def count(
    keys: DeviceArray,
    out: DeviceArray,
    allocate: Allocate,
    weights: DeviceArray | None = None,
    *,
    axis: int,
    device: int,
    stream: int,
    check: bool,
    dropped: int | None = None,
    **keywords: Any,
) -> int:
    """`counts.count`; with `check` wait for it and return the position of the first key outside, or -1."""
    if not check:
        bincount_launch.count(
            keys, out, allocate, weights, axis=axis, device=device, stream=stream, dropped=dropped, **keywords
        )
        return -1
    pointer, keep = allocate(2 * _WORD)
    bincount_launch.count(
        keys, out, allocate, weights, axis=axis, device=device, stream=stream, dropped=pointer,
        first_outside=pointer + _WORD, **keywords,
    )  # fmt: skip
    n_dropped, first = _read(pointer, 2, device, stream)
    del keep
    return first if n_dropped else -1
