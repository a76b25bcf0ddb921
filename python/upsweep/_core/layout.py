"""Axes, shapes and memory of operands, ndarrays and device views alike. No function here reads an element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays import Array, DeviceView, Operand


def moveaxis(array: Operand, source: int, destination: int) -> Operand:
    """Move one axis of an array or a tensor, positions counted from the front; faster than ``np.moveaxis``."""
    if source == destination:
        return array
    order = list(range(array.ndim))
    order.insert(destination, order.pop(source))
    return (getattr(array, "permute", None) or array.transpose)(order)


def memory_order(strides: Sequence[int]) -> list[int]:
    """Return the axes from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))


def merge_axes(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring axes where the strides of every array allow it, and drop axes of one element.

    `strides` are those of each array along the axes; the same is returned for the merged ones.
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for d, size in enumerate(shape):
        if size == 1:
            continue
        steps = [each[d] for each in strides]
        if sizes and all(each[-1] == step * size for each, step in zip(merged, steps)):
            sizes[-1] *= size
            for each, step in zip(merged, steps):
                each[-1] = step
        else:
            sizes.append(size)
            for each, step in zip(merged, steps):
                each.append(step)
    return sizes, merged


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], like: Array | None = None) -> Array:
    """Return an uninitialised array, laid out as `like` if that has its shape and no broadcast axis."""
    if like is None or like.shape != shape or 0 in like.strides:
        return np.empty(shape, dtype)
    return np.empty_like(like, dtype=dtype, order="K", subok=False)


def address(array: Operand) -> int:
    """Return the address of the first element."""
    return array.pointer if isinstance(array, DeviceView) else int(array.__array_interface__["data"][0])


def have_same_memory(a: Operand, b: Operand) -> bool:
    """Whether two arrays have the same elements at the same addresses."""
    return (address(a), a.shape, a.dtype) == (address(b), b.shape, b.dtype) and all(
        n <= 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides)
    )


def overlap(a: Operand, b: Operand) -> bool:
    """Whether two arrays share memory; also true where a bounded search does not decide it."""
    if not np.may_share_memory(a, b):
        return False
    try:
        # The bound is on a search that is exponential at worst; the stubs know only its two named values.
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: Operand) -> bool:
    """Whether two elements of the array share memory.

    The indices of such a pair differ first along some axis. Shifted so that one of them has index 0 on that axis
    and on all axes before it, one element is in the first slice of the axis and the other one in the rest. For
    axes in the order of their strides, `overlap` rules that out quickly in all usual arrays.
    """
    if array.flags.c_contiguous or array.flags.f_contiguous or array.size == 0:
        return False
    ordered = array.transpose(memory_order(array.strides))
    return any(
        overlap(ordered[(0,) * axis + (slice(1, None),)], ordered[(0,) * axis + (slice(0, 1),)])
        for axis in range(array.ndim)
        if ordered.shape[axis] > 1
    )
