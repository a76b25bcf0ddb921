"""Operations on the user's arrays in their own library: broadcasting, stacking and copies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from upsweep._arrays.descriptor import Array, DeviceView
from upsweep._arrays.libraries import any_torch, library_of

__all__ = [
    "broadcast_together",
    "calculates",
    "copied",
    "namespace",
    "on_device_of",
    "copy_to_device_of",
    "stacked",
]


def namespace(array: Any) -> Any:
    """Return the module with the array API's functions: torch, or the module that the array names."""
    return sys.modules["torch"] if any_torch(array) else array.__array_namespace__()


def broadcast_together(x: Any, flags: Any) -> tuple[Any, Any]:
    """Broadcast x, which may be a list, and flags to one shape; flags may be None."""
    x = x if hasattr(x, "shape") else np.asarray(x)
    if flags is None:
        return x, None
    both: tuple[Any, Any]
    if any_torch(x, flags):
        both = sys.modules["torch"].broadcast_tensors(x, flags)
    else:
        both = namespace(x).broadcast_arrays(x, flags)
    return both


def stacked(arrays: Sequence[Any], axis: int) -> Any:
    """Stack arrays of one shape along a new axis."""
    if any_torch(*arrays):
        return sys.modules["torch"].stack(tuple(arrays), axis)
    library = library_of(arrays[0])
    return np.stack(arrays, axis) if library is None else library.stack(arrays, axis)


def copy_to_device_of(like: Any, array: Array) -> Any:
    """Copy a short host array to the library and the device of `like`, a tensor or a device view."""
    if any_torch(like):
        torch = sys.modules["torch"]
        return torch.from_numpy(array).to(like.device)
    assert isinstance(like, DeviceView)
    copy = like.origin.library.to_device(array, like.origin.ordinal or 0)
    if copy is None:
        raise TypeError(f"upsweep does not know how to make a {like.origin.library.name} of an array of numpy")
    return copy


def copied(array: Any) -> Any:
    """Return a copy, which does not keep the memory alive that the array is a view of."""
    return array.clone() if any_torch(array) else array.copy()


def on_device_of(array: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which numpy's functions on this array create results on its device."""
    library = library_of(array)
    if library is None:
        return contextlib.nullcontext()
    return library.on(library.view(array, "array").origin.ordinal or 0)


def calculates(array: Any) -> bool:
    """Whether the array is on a device and its library implements numpy's functions."""
    library = library_of(array)
    return library is not None and library.numpy_like is not None
