"""Counts whose results, or errors, depend on the keys: launches whose answer is read back to the host.

Reading back waits for the stream. Each function therefore reads all that it needs at once.
"""

from __future__ import annotations

import struct
from typing import Any

from upsweep._backends.cuda import bincount_launch, library
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor

__all__ = ["count", "find_extremes", "find_range"]

_WORD = 8  # bytes


def _read_words(pointer: int, n_words: int, device: int, stream: int) -> tuple[int, ...]:
    """Return int64 of device memory, once the work on the stream is done."""
    return struct.unpack(f"={n_words}q", library.read_bytes(pointer, n_words * _WORD, device, stream))


def find_range(
    keys: ArrayDescriptor, *, axis: int, device: int, stream: int, allocate: Allocate
) -> tuple[int, int]:  # fmt: skip
    """Return the largest key (negative if all are), and the position of the first negative key, or -1."""
    if 0 in keys.shape:
        return -1, -1
    pointer, keep_alive = allocate(2 * _WORD)
    bincount_launch.key_range(keys, pointer, axis=axis, device=device, stream=stream)
    largest, first_negative = _read_words(pointer, 2, device, stream)
    del keep_alive
    return largest % 2**64 if keys.dtype.startswith(("uint", "bool")) else largest, first_negative


def find_extremes(
    x: ArrayDescriptor, *, device: int, stream: int, allocate: Allocate
) -> tuple[float, float, int]:  # fmt: skip
    """Return the least and the largest element, and the position of the first one that is not finite, or -1."""
    pointer, keep_alive = allocate(3 * _WORD)
    bincount_launch.value_range(x, pointer, device=device, stream=stream)
    least, largest, first = _read_words(pointer, 3, device, stream)
    del keep_alive
    return bincount_launch.read_value_range(x.dtype, (least, largest, first))


def count(
    keys: ArrayDescriptor, out: ArrayDescriptor, *, check: bool, device: int, stream: int, allocate: Allocate,
    dropped: int | None = None, **options: Any,
) -> int:  # fmt: skip
    """Run `bincount_launch.count`; with `check` wait, and return the position of the first key outside, or -1."""
    options |= {"device": device, "stream": stream, "allocate": allocate}
    if not check:
        bincount_launch.count(keys, out, dropped=dropped, **options)
        return -1
    pointer, keep_alive = allocate(2 * _WORD)
    bincount_launch.count(keys, out, dropped=pointer, first_outside=pointer + _WORD, **options)
    n_dropped, first = _read_words(pointer, 2, device, stream)
    del keep_alive
    return first if n_dropped else -1
