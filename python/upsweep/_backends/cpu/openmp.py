"""Where OpenMP's functions are that the package's kernels run on, for code that is compiled at run time."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import upsweep._backends.cpu._machine as _machine

__all__ = ["symbols"]


@functools.cache
def symbols(names: Sequence[str]) -> dict[str, int]:
    """The addresses of functions, looked up in the libraries of the package's own module; empty without OpenMP."""
    if not _machine.openmp_version():
        return {}
    library = ctypes.CDLL(_machine.__file__)
    found = {}
    for name in names:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        found[name] = address
    return found
