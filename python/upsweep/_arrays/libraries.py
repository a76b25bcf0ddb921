"""Recognises the library of an array, finds the device of a call, and calls operations of the array's own library.

No array library is imported for that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from upsweep._arrays.cupy import CUPY
from upsweep._arrays.device_view import Array, DeviceView, Operand, Origin, contiguous_strides
from upsweep._arrays.interface import NUMBA, Library, Shape

# The types of most arguments. All others are examined.
PLAIN = frozenset((type(None), bool, int, float, complex, str, list, tuple, np.ndarray))


# An axis by its number, or by the name of a dimension of a labelled array; None: the default.
Axis = int | str | None


class Placement(NamedTuple):
    """The array library and the device that a call runs on and returns to."""

    library: Library
    ordinal: int


def type_name(value: object) -> str:
    """Return the type as users know it: cupy.ndarray, numba.DeviceNDArray."""
    library = type(value).__module__.partition(".")[0]
    return type(value).__qualname__ if library == "builtins" else f"{library}.{type(value).__qualname__}"


def any_torch(*values: object) -> bool:
    """Whether one of these is a torch tensor."""
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = torch.Tensor
        for value in values:  # a generator expression would add a tenth to the time of a small call
            if isinstance(value, tensor):
                return True
    return False


def any_dask(*values: object) -> bool:
    """Whether one of these is a dask array."""
    dask_array = sys.modules.get("dask.array")
    if dask_array is None:
        return False
    kind = getattr(dask_array, "Array", None)  # None while another thread imports the module
    return kind is not None and any(isinstance(value, kind) for value in values)


# The types of labelled arrays by library, also those that its adapter refuses with a remedy.
LABELLED = {
    "pandas": ("Series", "DataFrame"), "xarray": ("DataArray", "Dataset"),
    "polars": ("Series", "DataFrame", "LazyFrame", "Expr"),
}  # fmt: skip
_labelled_types: dict[str, tuple[type, ...]] = {}  # of the libraries that are imported


def any_labelled(*values: object) -> bool:
    """Whether one of these is a labelled array: of pandas, xarray or polars."""
    for value in values:  # noqa: SIM110  # every small call runs this; `any` would cost more
        if type(value) not in PLAIN and labelled_library_of(value) is not None:
            return True
    return False


def refuse_labels(**named: Any) -> None:
    """Raise for labelled arrays, alone or in tuples, where the results would lose the labels."""
    for name, value in named.items():
        for each in value if isinstance(value, tuple) else (value,):
            if any_labelled(each):
                kind = type_name(each)
                raise TypeError(f"{name}: expected arrays without labels, got a {kind}; pass {name}.to_numpy()")


def labelled_library_of(value: object) -> str | None:
    """Return the name of the library of a labelled array; None for everything else."""
    if isinstance(value, np.generic):
        return None
    for name, types in LABELLED.items():
        module = sys.modules.get(name)
        if module is not None:
            kinds = _labelled_types.get(name)
            if kinds is None:
                kinds = tuple(getattr(module, kind) for kind in types if hasattr(module, kind))
                if len(kinds) == len(types):  # else another thread is importing the module
                    _labelled_types[name] = kinds
            if isinstance(value, kinds):
                return name
    return None


def any_on_device(*values: object) -> bool:
    """Whether one of these is an array on a CUDA device, other than a torch tensor."""
    return any(isinstance(value, DeviceView) or library_of(value) is not None for value in values)


def library_of(value: object) -> Library | None:
    """Return the adapter of an array on a CUDA device; None for everything else, torch tensors included."""
    if type(value) in PLAIN or isinstance(value, (np.ndarray, np.generic)):
        return None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return CUPY
    if not hasattr(value, "__cuda_array_interface__"):
        return None
    return NUMBA if type(value).__module__.startswith(("numba.", "numba_cuda.")) else Library(type_name(value))


def view(value: object, name: str) -> DeviceView | None:
    """Describe an array on a device; None for everything else."""
    if type(value) in PLAIN:
        return None
    if isinstance(value, DeviceView):
        return value
    library = library_of(value)
    if library is None:
        return None
    array = library.view(value, name)
    if not array.flags.aligned:  # a misaligned load would end all work on the device
        raise ValueError(
            f"{name}: not all of its elements are at multiples of their size in memory, as a device needs them: "
            f"dtype {array.dtype}, strides of {array.strides} bytes"
        )
    return array


def on_device(pointer: int, shape: Shape, dtype: np.dtype[Any], placement: Placement, owner: object) -> DeviceView:
    """Describe memory of a device as an array in C order, which keeps the owner of the memory alive."""
    origin = Origin(owner, placement.library, placement.ordinal, None)
    return DeviceView(pointer, shape, contiguous_strides(shape, dtype.itemsize), dtype, origin)


_ALIGNED_OR_WRITEABLE = 0x100 | 0x400  # numpy's flags of an array


def host_layout_key(value: Any) -> Hashable:
    """Return a key that is equal for numpy arrays of equal layout; None for everything else."""
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype, value.flags.num & _ALIGNED_OR_WRITEABLE
    kind: Any = type(value)
    return kind if isinstance(value, np.generic) else None


def device_layout_key(value: Any) -> Hashable:
    """Return a key that is equal for arrays on a device of equal layout; None for everything else."""
    if type(value) is DeviceView:
        library, ordinal = value.origin.library, value.origin.ordinal
        return (value.shape, value.strides, value.dtype, library, ordinal) if library.has_current_stream else None
    library_or_none = library_of(value)
    return None if library_or_none is None else library_or_none.layout_key(value)


def address_on_device(value: Any, library: Library) -> int:
    """Return the address of the first element of an array or a device view."""
    return value.pointer if type(value) is DeviceView else library.address(value)


def common_placement(named: dict[str, Operand | None]) -> Placement | None:
    """Return the library and device of all arrays of a call; None for the host. 0-d host arrays go with any."""
    for array in named.values():
        if isinstance(array, DeviceView):
            break
    else:
        return None
    origins = {name: array.origin for name, array in named.items() if isinstance(array, DeviceView)}
    # Arrays with nothing but the interface go with those of any library.
    chosen = next((name for name, origin in origins.items() if origin.library.allocates), next(iter(origins)))
    library = origins[chosen].library
    for name, array in named.items():
        if array is None or name == chosen:
            continue
        if name not in origins:
            if array.ndim:
                raise TypeError(
                    f"{name}: is an array in the host's memory, while {chosen} is a {library.name} on a CUDA "
                    "device; convert it explicitly"
                )
        elif origins[name].library is not library and origins[name].library.allocates:
            raise TypeError(
                f"{name}: expected a {library.name}, as {chosen} is one, got a {origins[name].library.name}"
            )
    placed = {name: origin.ordinal for name, origin in origins.items() if origin.ordinal is not None}
    for name, ordinal in placed.items():
        first, expected = next(iter(placed.items()))
        if ordinal != expected:
            raise ValueError(f"{name}: is on CUDA device {ordinal}, {first} on CUDA device {expected}")
    return Placement(library, next(iter(placed.values()), 0))


# ---- operations of the arrays' own library ---------------------------------------------------------------------


def namespace(array: Any) -> Any:
    """Return the module with the array API's functions: torch, or the module that the array names."""
    return sys.modules["torch"] if any_torch(array) else array.__array_namespace__()


def broadcast_together(x: Any, flags: Any) -> tuple[Any, Any]:
    """Broadcast x, which may be a list, and flags to one shape; flags may be None."""
    x = x if hasattr(x, "shape") else np.asarray(x)
    if flags is None:
        return x, None
    is_torch = any_torch(x, flags)
    x, flags = (sys.modules["torch"].broadcast_tensors if is_torch else namespace(x).broadcast_arrays)(x, flags)
    return x, flags


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
