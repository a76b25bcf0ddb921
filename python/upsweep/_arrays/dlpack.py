"""DLPack import and export, for arrays that nothing else describes (jax's, for example).

`call_via_dlpack` calls a function with numpy arrays, or arrays on the device, that share their memory, and exports
the result to the library that the arguments came from.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from upsweep._arrays.libraries import PLAIN, DeviceView, library_of, type_name, view_cupy, view_tensor

__all__ = ["any_dlpack_only", "call_via_dlpack"]

_CPU, _CUDA = (1, 3), (2, 13)  # DLPack's device types: memory, pinned memory; a device's, managed


def _from_dlpack(value: Any) -> Any:
    """The library's own from_dlpack, or None."""
    ask = getattr(value, "__array_namespace__", None)
    module = ask() if ask is not None else sys.modules.get(type(value).__module__.partition(".")[0])
    return getattr(module, "from_dlpack", None)


def _is_traced(value: object) -> bool:
    return type(value).__module__.startswith("jax") and "Tracer" in type(value).__name__


def _is_lent(value: object) -> bool:
    if type(value) in PLAIN or isinstance(value, (np.ndarray, np.generic)):
        return False
    if _is_traced(value):
        return True
    if not (hasattr(type(value), "__dlpack__") and hasattr(type(value), "__dlpack_device__")):
        return False
    library = None if _from_dlpack(value) is not None else library_of(value)
    if library is not None:
        return False  # it can be looked at, though not given back
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    return not (cupy is not None and isinstance(value, cupy.ndarray)) and not (
        torch is not None and isinstance(value, torch.Tensor)
    )


def any_dlpack_only(*values: object) -> bool:
    """Whether one of these is an array that only DLPack describes."""
    for value in values:  # noqa: SIM110  # small calls on numpy's arrays come by here: `any` costs more
        if type(value) not in PLAIN and _is_lent(value):
            return True
    return False


def call_via_dlpack(function: Callable[..., Any], arrays: dict[str, Any], **keywords: Any) -> Any:
    """Call the function with its arrays as numpy's or a device's, and give the result to their library.

    Raises
    ------
    TypeError
        Arrays of two libraries; `out` among them; a library that has no from_dlpack.
    ValueError
        Arrays of two devices.
    """
    producer = next(value for value in arrays.values() if _is_lent(value))
    kind = type_name(producer)
    for name, value in arrays.items():
        if _is_traced(value):
            raise TypeError(f"{name}: an array that jax traces has no memory yet; call outside of jax.jit")
    if arrays.get("out") is not None:
        raise TypeError(f"out: arrays that are lent through DLPack ({kind}) are not written to; leave it out")
    take = _from_dlpack(producer)
    if take is None:
        raise TypeError(f"{kind}: has no from_dlpack to take the result; convert it explicitly")
    placement = producer.__dlpack_device__()
    given = dict(arrays)
    for name, value in arrays.items():
        if value is None or isinstance(value, (bool, int, float, complex, np.generic)):
            continue
        if not _is_lent(value) or _from_dlpack(value) != take:
            raise TypeError(f"{name}: expected a {kind}, as another argument is one, got {type_name(value)}")
        device = value.__dlpack_device__()
        if tuple(map(int, device)) != tuple(map(int, placement)):
            raise ValueError(
                f"{name}: is on device {tuple(device)} of DLPack, another argument on {tuple(placement)}"
            )
        given[name] = _lend(value, name, int(placement[0]))
    return export_result(function(**given, **keywords), take, producer)


def _lend(value: Any, name: str, device: int) -> Any:
    if device in _CPU and getattr(getattr(value, "dtype", None), "name", "") == "bfloat16":
        return np.asarray(value)  # numpy's DLPack knows no bfloat16
    take: Callable[[Any], Any] = np.from_dlpack
    look = None
    if device in _CUDA:
        take, look = staging_library()
    elif device not in _CPU:
        raise TypeError(f"{name}: expected memory of the host or of a CUDA device, got device {device} of DLPack")
    try:
        taken = take(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: a {type_name(value)} could not be taken through DLPack: {error}") from error
    return taken if look is None else look(taken, name)


def staging_library() -> tuple[Callable[[Any], Any], Callable[[Any, str], DeviceView]]:
    """A library that lays memory out on devices: its from_dlpack, and its view. One that is in use comes first."""
    for available in (sys.modules.__contains__, importlib.util.find_spec):
        for name, look in (("torch", view_tensor), ("cupy", view_cupy)):
            if available(name):
                module = importlib.import_module(name)
                if name == "cupy" or module.cuda.is_available():
                    return module.from_dlpack, look
    raise TypeError("arrays that DLPack describes on a CUDA device need torch or cupy, to allocate memory there")


def export_result(result: Any, take: Callable[[Any], Any], producer: Any) -> Any:
    if isinstance(result, tuple):
        parts = [export_result(part, take, producer) for part in result]
        return result._make(parts) if hasattr(result, "_make") else tuple(parts)
    if isinstance(result, np.generic):
        return result
    if not isinstance(result, np.ndarray):  # the carrier's
        return take(result.contiguous() if hasattr(result, "contiguous") else result.copy("C"))
    if result.dtype.name == "bfloat16":
        return producer.__array_namespace__().asarray(result, device=producer.device)
    return take(np.asarray(result, order="C"))
