"""DLPack import and export, for arrays that nothing else describes (jax's, for example).

`call_via_dlpack` calls a function with numpy arrays, or device views, that share the memory of the arguments, and
exports the result to the library of the arguments. The public functions call it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from upsweep._arrays.cupy import CUPY
from upsweep._arrays.interface import Library
from upsweep._arrays.libraries import PLAIN, any_torch, library_of, type_name
from upsweep._arrays.torch import TORCH

# DLPack's device types: host memory and pinned memory; device memory and managed memory.
_CPU, _CUDA = (1, 3), (2, 13)


def _from_dlpack(value: Any) -> Any:
    """Return the from_dlpack of the array's library, or None."""
    namespace = getattr(value, "__array_namespace__", None)
    module = sys.modules.get(type(value).__module__.partition(".")[0]) if namespace is None else namespace()
    return getattr(module, "from_dlpack", None)


def _is_traced(value: object) -> bool:
    return type(value).__module__.startswith("jax") and "Tracer" in type(value).__name__


def _is_dlpack_only(value: object) -> bool:
    if type(value) in PLAIN or isinstance(value, (np.ndarray, np.generic)):
        return False
    if _is_traced(value):
        return True
    if not (hasattr(type(value), "__dlpack__") and hasattr(type(value), "__dlpack_device__")) or any_torch(value):
        return False
    library = library_of(value)
    # An array that an interface describes, too, needs a way to export the result.
    return library is None or (library is not CUPY and _from_dlpack(value) is not None)


def any_dlpack_only(*values: object) -> bool:
    """Whether one of these is an array that only DLPack describes."""
    for value in values:  # noqa: SIM110  # every small call runs this; `any` would cost more
        if type(value) not in PLAIN and _is_dlpack_only(value):
            return True
    return False


def call_via_dlpack(function: Callable[..., Any], arrays: dict[str, Any], **keywords: Any) -> Any:
    """Call the function with its arrays imported through DLPack, and export the result to their library.

    All arrays are of one library, which has a from_dlpack, and on one device; `out` is not among them.
    """
    producer = next(value for value in arrays.values() if _is_dlpack_only(value))
    kind = type_name(producer)
    for name, value in arrays.items():
        if _is_traced(value):
            raise TypeError(f"{name}: an array that jax traces has no memory yet; call outside of jax.jit")
    if arrays.get("out") is not None:
        raise TypeError(f"out: arrays that come through DLPack ({kind}) are not written to; leave it out")
    from_dlpack = _from_dlpack(producer)
    if from_dlpack is None:
        raise TypeError(f"{kind}: has no from_dlpack to take the result; convert it explicitly")
    expected = tuple(map(int, producer.__dlpack_device__()))
    imported = dict(arrays)
    for name, value in arrays.items():
        if value is None or isinstance(value, (bool, int, float, complex, np.generic)):
            continue
        if not _is_dlpack_only(value) or _from_dlpack(value) != from_dlpack:
            raise TypeError(f"{name}: expected a {kind}, as another argument is one, got {type_name(value)}")
        device = tuple(map(int, value.__dlpack_device__()))
        if device != expected:
            raise ValueError(f"{name}: is on device {device} of DLPack, another argument on {expected}")
        imported[name] = _import(value, name, expected[0])
    return _export(function(**imported, **keywords), from_dlpack, producer)


def _import(value: Any, name: str, device: int) -> Any:
    """Return an ndarray or a device view that shares the memory of the array."""
    if device in _CPU and getattr(getattr(value, "dtype", None), "name", "") == "bfloat16":
        return np.asarray(value)  # numpy's DLPack knows no bfloat16
    from_dlpack: Callable[[Any], Any] = np.from_dlpack
    library: Library | None = None
    if device in _CUDA:
        from_dlpack, library = _staging_library()
    elif device not in _CPU:
        raise TypeError(f"{name}: expected memory of the host or of a CUDA device, got device {device} of DLPack")
    try:
        array = from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: a {type_name(value)} could not be taken through DLPack: {error}") from error
    return array if library is None else library.view(array, name)


def _staging_library() -> tuple[Callable[[Any], Any], Library]:
    """Return from_dlpack and adapter of a library that imports and allocates device memory; a loaded one first."""
    for available in (sys.modules.__contains__, importlib.util.find_spec):
        for name, library in (("torch", TORCH), ("cupy", CUPY)):
            if available(name):
                module = importlib.import_module(name)
                if name == "cupy" or module.cuda.is_available():
                    return module.from_dlpack, library
    raise TypeError("arrays that DLPack describes on a CUDA device need torch or cupy, to allocate memory there")


def _export(result: Any, from_dlpack: Callable[[Any], Any], producer: Any) -> Any:
    """Return the result, or each part of it, as an array of the producer's library."""
    if isinstance(result, tuple):
        parts = [_export(part, from_dlpack, producer) for part in result]
        return result._make(parts) if hasattr(result, "_make") else tuple(parts)
    if isinstance(result, np.generic):
        return result
    if not isinstance(result, np.ndarray):  # an array of the staging library
        return from_dlpack(result.contiguous() if hasattr(result, "contiguous") else result.copy("C"))
    if result.dtype.name == "bfloat16":
        return producer.__array_namespace__().asarray(result, device=producer.device)
    # Edges that were imported are a result as well, and read-only; numpy 2.0 exports no such array.
    return from_dlpack(np.require(result, requirements=("C", "W")))
