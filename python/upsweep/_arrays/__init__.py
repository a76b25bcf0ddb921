"""From an argument to an array whose dtype the kernels know.

A public function hands every array argument to :func:`as_operand` together with its name; what comes back is a
``numpy.ndarray``, or an `DeviceView` for an array that lies on a CUDA device. What can be
neither is refused here, by name, instead of being copied to numpy behind the user's back. With torch's tensors and
the libraries of `libraries` and `_lent` beside it, this is the only file that knows array libraries.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from upsweep._arrays import libraries
from upsweep._arrays.dlpack import any_dlpack_only, call_via_dlpack
from upsweep._arrays.libraries import (
    DeviceView,
    Placement,
    address_on_device,
    common_placement,
    device_layout_key,
    host_layout_key,
    name_of,
    on_device,
    type_name,
    view_tensor,
)

__all__ = [
    "Array",
    "Placement",
    "DeviceView",
    "accumulator_dtype",
    "address_on_device",
    "any_dask",
    "any_dlpack_only",
    "any_on_device",
    "any_torch",
    "as_array",
    "as_dtype",
    "as_number",
    "as_operand",
    "on_device_of",
    "call_via_dlpack",
    "broadcast_together",
    "calculates",
    "can_hold",
    "cast",
    "check_device",
    "common_placement",
    "complex_dtype",
    "copied",
    "inexact_dtype",
    "is_bfloat16",
    "device_layout_key",
    "host_layout_key",
    "name_of",
    "namespace",
    "on_device",
    "refuse_device",
    "result_dtype",
    "sent_to",
    "stacked",
    "state_dtype",
    "type_name",
    "view_tensor",
]

Array = NDArray[Any]

# Libraries whose arrays would lose their type, device or laziness in np.asarray.
_OTHER_LIBRARIES = ("torch", "cupy", "dask", "jax", "jaxlib", "tensorflow")


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether this is ml_dtypes' bfloat16, without importing ml_dtypes."""
    return dtype.itemsize == 2 and dtype.kind in "Vf" and dtype.name == "bfloat16"


def any_torch(*values: object) -> bool:
    """Whether one of these is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = torch.Tensor
        for value in values:  # a generator would cost a call of the scans' fast paths a tenth
            if isinstance(value, tensor):
                return True
    return False


def any_dask(*values: object) -> bool:
    """Whether one of these is a dask array; dask is not imported to find out."""
    dask_array = sys.modules.get("dask.array")
    kind = getattr(dask_array, "Array", None)  # not yet there while the module is imported
    return kind is not None and any(isinstance(value, kind) for value in values)


def namespace(array: Any) -> Any:
    """The functions of the array's library, by the array API's names: torch, or what the array itself names."""
    return sys.modules["torch"] if any_torch(array) else array.__array_namespace__()


def broadcast_together(x: Any, flags: Any) -> tuple[Any, Any]:
    """x, a list too, and flags or None, of one shape."""
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
    """Arrays of one shape along an axis of their own: numpy's, tensors, or of a library that can."""
    if any_torch(*arrays):
        return sys.modules["torch"].stack(tuple(arrays), axis)
    library = libraries.library_of(arrays[0])
    return np.stack(arrays, axis) if library is None else library.stack(arrays, axis)


def sent_to(where: Any, array: Array) -> Any:
    """A short array of the host where another one is: a tensor, or on its device."""
    if any_torch(where):
        torch = sys.modules["torch"]
        return torch.from_numpy(array).to(where.device)
    assert isinstance(where, DeviceView)
    there = where.origin.library.sent(array, where.origin.ordinal or 0)
    if there is None:
        raise TypeError(f"upsweep does not know how to make a {where.origin.library.name} of an array of numpy")
    return there


def copied(array: Any) -> Any:
    """A copy, which does not keep alive what the array is a view of."""
    return array.clone() if any_torch(array) else array.copy()


def on_device_of(array: Any) -> contextlib.AbstractContextManager[Any]:
    """While it is entered, what numpy's functions make of this array is made on its device."""
    library = libraries.library_of(array)
    return (
        contextlib.nullcontext()
        if library is None
        else library.on(library.view(array, "array").origin.ordinal or 0)
    )


def calculates(array: Any) -> bool:
    """Whether it lies on a device, and numpy's functions are its library's there."""
    library = libraries.library_of(array)
    return library is not None and library.numpy_like is not None


def any_on_device(*values: object) -> bool:
    """Whether one of these lies on a CUDA device and is no torch tensor."""
    return any(isinstance(value, DeviceView) or libraries.library_of(value) is not None for value in values)


def refuse_device(device: object, arrays: str) -> None:
    """Refuse `device` with arrays that are on one already."""
    if device is not None:
        raise ValueError(f"device: goes with numpy arrays only; {arrays} are computed where they are")


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray) and not isinstance(value, DeviceView):
        return f"an array of dtype {value.dtype}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def as_number(value: Any, name: str, limit: int = 2**64) -> Any:
    """The number; a Python integer that no dtype holds as a float, which all scans but those of integers take."""
    if not isinstance(value, int) or -(2**63) <= value < limit:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: an integer of {value.bit_length()} bits is beyond float64's range") from None


def as_array(value: object, name: str) -> Array:
    """Return `value` as an ndarray of a dtype that the kernels take, without copying arrays.

    Raises
    ------
    TypeError
        Masked arrays, arrays of other libraries, strings, objects and other dtypes that are no numbers.
    ValueError
        A list of lists of different lengths; an integer beyond float64.
    """
    if type(value) is not np.ndarray:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name}: masked arrays are not supported; fill it first, e.g. {name}.filled(0)")
        if type(value) not in libraries.PLAIN and _is_others(value):
            raise TypeError(f"{name}: expected a numpy array, got {_describe(value)}; convert it explicitly")
        value = as_number(value, name)
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{name}: cannot be made an array: {error}") from None
    array: Array = value
    _check_numbers(array, name)
    return array


def _is_others(value: object) -> bool:
    library = type(value).__module__.partition(".")[0]
    return (library in _OTHER_LIBRARIES and library in sys.modules) or any_on_device(value)


def _check_numbers(array: Array, name: str) -> None:
    kind = array.dtype.kind
    if not (kind in "biufc" and array.dtype.itemsize <= (16 if kind == "c" else 8)) and not is_bfloat16(
        array.dtype
    ):
        raise TypeError(
            f"{name}: expected real or complex numbers of up to 64 bits a part, got {_describe(array)}"
        )


def as_operand(value: object, name: str) -> Array:
    """`as_array`, which also takes arrays that lie on a CUDA device, and leaves them there."""
    on_device = libraries.view(value, name)
    if on_device is None:
        return as_array(value, name)
    _check_numbers(on_device, name)
    return on_device


def cast(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    """The argument in another dtype, where it is."""
    return array.origin.library.cast(array, dtype, name) if isinstance(array, DeviceView) else array.astype(dtype)


def check_device(device: object) -> int | None:
    """The ordinal of the CUDA device that the argument names; None for the CPU.

    Raises
    ------
    ValueError
        The argument names no device.
    """
    if device is None or (isinstance(device, str) and device == "cpu"):
        return None
    if isinstance(device, str):
        kind, colon, ordinal = device.partition(":")
        if kind == "cuda" and (ordinal.isdecimal() or not colon) and int(ordinal or 0) < 2**31:
            return int(ordinal or 0)
    raise ValueError(f"device: expected None, 'cpu' or 'cuda[:N]', got {device!r}")


# ---- dtypes ---------------------------------------------------------------------------------------------------


def as_dtype(given: DTypeLike) -> np.dtype[Any]:
    """The dtype that the argument `dtype` names.

    Raises
    ------
    TypeError
        It names none.
    """
    try:
        return np.dtype(given)
    except (TypeError, ValueError, SyntaxError) as error:  # numpy parses strings with commas as Python
        raise TypeError(f"dtype: {given!r} names no dtype: {error}") from None


def inexact_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in native byte order, or float64 for integers and bool."""
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")


def result_dtype(*arrays: Array | complex) -> np.dtype[Any]:
    """The inexact dtype that numpy's promotion gives; Python scalars do not widen it."""
    promoted = np.result_type(*arrays)
    return inexact_dtype(promoted)


def complex_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The complex dtype of the same precision, complex64 for the short ones."""
    if dtype.kind == "c":
        return dtype
    return np.dtype(np.complex128 if dtype == np.float64 else np.complex64)


def state_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a state that users see: float32 for float16 and bfloat16, else the result's."""
    return np.dtype(np.float32) if dtype == np.float16 or is_bfloat16(dtype) else dtype


def can_hold(state: np.dtype[Any], given: np.dtype[Any]) -> bool:
    """Whether a state of this dtype, float64, complex128 or 64-bit integers, can take on a given number."""
    if given.kind in "biu":
        return True  # integers wrap around alike
    return state.kind in "fc" and (given.kind != "c" or state.kind == "c")


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that a scan with this result computes in."""
    if dtype.kind == "c":
        return np.dtype(np.complex128)
    if dtype.kind in "bi":
        return np.dtype(np.int64)
    if dtype.kind == "u":
        return np.dtype(np.uint64)
    return np.dtype(np.float64)
