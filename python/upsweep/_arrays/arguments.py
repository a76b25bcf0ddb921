"""Array arguments of the public functions: checks that need no operation, with errors that name the argument.

`as_operand` takes numpy arrays, lists and numbers, and arrays on a CUDA device, which it describes. `as_array`
takes only the former. Arrays of other libraries are refused instead of being copied without the user's
knowledge.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from upsweep._arrays import libraries
from upsweep._arrays.dates import are_dates
from upsweep._arrays.device_view import Array, DeviceView, Operand
from upsweep._arrays.dtypes import is_bfloat16

# Libraries whose arrays would lose their type, device or laziness in np.asarray.
_OTHER_LIBRARIES = ("torch", "cupy", "dask", "jax", "jaxlib", "tensorflow")


def as_number(value: Any, name: str, limit: int = 2**64) -> Any:
    """Return the number. An integer that no dtype holds becomes a float, which all but integer scans accept."""
    if not isinstance(value, int) or -(2**63) <= value < limit:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: an integer of {value.bit_length()} bits is beyond float64's range") from None


def as_ndarray(value: object, name: str) -> Array:
    """Return `value` as an ndarray of any dtype, without copying arrays."""
    if type(value) is not np.ndarray:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                f"{name}: masked arrays are not supported; fill them, e.g. {name}.filled(0) in sums, or leave the "
                f"masked elements out, {name}.compressed(), and the same ones of the arrays beside it"
            )
        library = type(value).__module__.partition(".")[0]
        is_other = library in _OTHER_LIBRARIES and library in sys.modules
        if type(value) not in libraries.PLAIN and (is_other or libraries.any_on_device(value)):
            how = "by to_dask_array(lengths=True)" if hasattr(value, "to_dask_array") else "explicitly"
            raise TypeError(f"{name}: expected a numpy array, got {_type_text(value)}; convert it {how}")
        if library in libraries.LABELLED and not hasattr(value, "__array__"):
            remedy = _remedy(value, name, library)
            raise TypeError(f"{name}: expected an array, got a {libraries.type_name(value)}; {remedy}")
        if isinstance(value, (list, tuple)) and value:
            refuse_list_of_tensors(value, name)
            if _has_axes_with_labels(value[0]):
                kind = libraries.type_name(value[0])
                raise TypeError(
                    f"{name}: is a list of {kind}, whose labels would be lost; join them, e.g. by pandas.concat "
                    f"or xarray.concat, or pass np.stack({name})"
                )
        value = as_number(value, name)
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{name}: cannot be made an array: {error}") from None
    array: Array = value
    return array


def refuse_list_of_tensors(value: object, name: str) -> None:
    """Raise for a list of tensors, of which numpy would make an array without a gradient."""
    first: Any = value
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if first is not value and libraries.any_torch(first):
        raise TypeError(f"{name}: is a {type(value).__name__} of tensors; use torch.stack({name})")


def as_array(value: object, name: str) -> Array:
    """Return `value` as an ndarray whose dtype the kernels support, without copying arrays."""
    array = as_ndarray(value, name)
    _check_dtype(array, name, value)
    return array


def as_operand(value: object, name: str) -> Any:
    """Return `as_array` of the value, or the device view of an array on a CUDA device."""
    view = libraries.view(value, name)
    if view is None:
        return as_array(value, name)
    _check_dtype(view, name)
    return view


def _remedy(value: object, name: str, library: str) -> str:
    """Say what to do with an object of a library of labelled arrays that is no array, as a groupby."""
    if library == "polars":
        return "use an expression, polars.col(column).map_batches(function), with .over(keys) for each group"
    if hasattr(value, "transform"):
        return f"{name}.transform(function) scans each group, {name}.apply(function) counts each"
    return f"{name}.map(function) calls it for each group" if hasattr(value, "map") else "pass the data themselves"


def _has_axes_with_labels(value: Any) -> bool:
    return libraries.any_labelled(value) and getattr(value, "shape", None) != ()


def _type_text(value: object) -> str:
    if isinstance(value, np.ndarray):
        if value.dtype == object and value.size:
            kind = libraries.type_name(value.flat[0])
            return f"an array of objects, the first a {kind}" if value.ndim else f"a {kind}"
        return f"an array of dtype {value.dtype}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _check_dtype(array: Operand, name: str, value: object = None) -> None:
    dtype = array.dtype
    is_number = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    if not is_number and not is_bfloat16(dtype):
        raise TypeError(
            f"{name}: expected real or complex numbers of up to 64 bits a part, got {_type_text(array)}"
            f"{_remedy_of(array, value, name)}"
        )


def _remedy_of(array: Operand, value: object, name: str) -> str:
    """What to pass in place of an array that has no numbers."""
    if are_dates(array):
        return f"; as numbers they are {name}.astype('int64'), upsweep.histogram counts dates"
    if hasattr(getattr(value, "codes", None), "dtype"):  # of pandas' categories without an index
        return f"; {name}.codes are its numbers"
    if array.dtype.kind == "O" and name == "reset":
        return "; set what is missing to False, then reset.astype(bool)"
    if array.dtype.kind == "O" and array.size and type(array.flat[0]).__name__ == "symbolic number":
        return "; the update of a scan is of single numbers, and no scan is possible inside of it"
    return {
        "S": "; bytes as numbers are np.frombuffer(x, np.uint8)",
        "U": "; the bytes of a str are np.frombuffer(x.encode(), np.uint8)",
    }.get(array.dtype.kind, "")


def cast(array: Operand, dtype: np.dtype[Any], name: str) -> Any:
    """Convert an argument to another dtype, on its device."""
    return array.origin.library.cast(array, dtype, name) if isinstance(array, DeviceView) else array.astype(dtype)


def check_device(device: object) -> int | None:
    """Return the ordinal of the CUDA device that the argument `device` names; None for the CPU."""
    if device is None or (isinstance(device, str) and device == "cpu"):
        return None
    if isinstance(device, str):
        kind, colon, ordinal = device.partition(":")
        if kind == "cuda" and (ordinal.isdecimal() or not colon) and int(ordinal or 0) < 2**31:
            return int(ordinal or 0)
    raise ValueError(f"device: expected None, 'cpu' or 'cuda[:N]', got {device!r}")


def refuse_device(device: object, arrays: str) -> None:
    """Refuse the argument `device` with arrays that are on a device already."""
    if device is not None:
        raise ValueError(f"device: goes with numpy arrays only; {arrays} are computed where they are")
