"""Finds libupsweep_cuda.so, loads it when it is first needed, and turns its statuses into exceptions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upsweep._backends.cuda import abi

__all__ = ["CudaError", "Library", "find", "load"]

NAME = "libupsweep_cuda.so"


class CudaError(RuntimeError):
    """A CUDA call failed; the message has its name and CUDA's own words."""


class Library:
    """The loaded library; its functions are attributes without their prefix, and raise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Asynchronous calls keep the GIL: to let go of it would cost more than they take.
            keeping, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{path}: cannot be loaded: {error}") from error
        try:
            version = keeping.upsweep_cuda_abi()  # before all else, which other versions may lack
        except AttributeError:
            raise ImportError(f"{path}: is no {NAME}: it has no function upsweep_cuda_abi") from None
        if version != abi.ABI:
            raise ImportError(f"{path}: has ABI version {version}, this upsweep needs {abi.ABI}")
        for name, (result, arguments, is_status, may_block) in abi.FUNCTIONS.items():
            function = getattr(releasing if may_block else keeping, name)
            function.restype, function.argtypes = result, arguments
            if is_status:
                function.errcheck = self._check
            setattr(self, name.removeprefix("upsweep_cuda_"), function)
        sizes = (ctypes.c_int64 * len(abi.STRUCTS))()
        self.sizes(sizes)
        expected = [ctypes.sizeof(struct) for struct in abi.STRUCTS.values()]
        if list(sizes) != expected:
            raise ImportError(f"{path}: its structures have sizes {list(sizes)}, this upsweep's {expected}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"{NAME} has no function upsweep_cuda_{name}")  # set in __init__, unless misspelt

    def _check(self, status: int, function: Any, arguments: Any) -> int:
        if status in (0, 4, 5):  # done; or nothing was, for want of a workspace or of a kernel
            return status
        text = self.last_error().decode(errors="replace")
        if abi.STATUS.get(status) == "INVALID":
            raise ValueError(text)
        raise CudaError(text)

    def built_for(self) -> list[str]:
        """The compute capabilities that the library holds code for, as "9.0"."""
        capabilities = (ctypes.c_int32 * 64)()
        n = self.architectures(capabilities, 64)
        return [f"{c // 10}.{c % 10}" for c in sorted(capabilities[:n])]


def find() -> Path | None:
    """Where the library is: UPSWEEP_CUDA_LIBRARY, beside this package, or in the package upsweep_cuda."""
    named = os.environ.get("UPSWEEP_CUDA_LIBRARY")
    if named is not None:
        return Path(named) if named else None
    beside = Path(__file__).parent / NAME
    if beside.exists():
        return beside
    spec = importlib.util.find_spec("upsweep_cuda")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / NAME).exists():
            return Path(folder) / NAME
    return None


_lock = threading.Lock()
_loaded: Library | None = None


def load() -> Library:
    """The library, loaded by the first call.

    Raises
    ------
    RuntimeError
        There is none.
    ImportError
        There is one that is not of this version, or that the system cannot load.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                path = find()
                if path is None:
                    raise RuntimeError(
                        f"this installation of upsweep has no CUDA library ({NAME}): it is built where nvcc is "
                        "found, or set UPSWEEP_CUDA_LIBRARY to its path"
                    )
                _loaded = Library(path)
    return _loaded
