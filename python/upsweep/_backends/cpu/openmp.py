"""Addresses of OpenMP functions, for compiled code that shares the thread pool of the native kernels."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import upsweep._backends.cpu._machine as _machine


@functools.cache
def symbols(names: Sequence[str]) -> dict[str, int]:
    """Look up functions in the OpenMP library that the package's modules are linked to; empty without OpenMP."""
    if not _machine.openmp_version():
        return {}
    library = ctypes.CDLL(_machine.__file__)
    addresses = {}
    for name in names:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        addresses[name] = address
    return addresses
