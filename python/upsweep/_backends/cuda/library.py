"""Loading of libupsweep_cuda.so: the functions of the C interface as attributes, their statuses as exceptions.

`load` opens the library on the first call of any operation on a device. Importing this module is cheap: the table
of the interface (`abi`) is imported by the first load.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAME = "libupsweep_cuda.so"


class CudaError(RuntimeError):
    """A CUDA call failed; the message has the call's name and CUDA's description of the error."""


class Library:
    """The loaded library; its functions are attributes without their prefix, and raise exceptions."""

    def __init__(self, path: Path) -> None:
        from upsweep._backends.cuda import _calls, abi

        self.path, self._names = path, abi.STATUS
        self._not_errors = (abi.OK, abi.NEEDS_WORKSPACE, abi.NO_KERNEL)
        try:
            # Asynchronous calls keep the GIL: releasing it would cost more than they take.
            holding_gil, releasing_gil = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{path}: cannot be loaded: {error}") from error
        try:
            version = holding_gil.upsweep_cuda_abi()  # first, since other versions may lack the other functions
        except AttributeError:
            raise ImportError(f"{path}: is no {NAME}: it has no function upsweep_cuda_abi") from None
        if version != abi.ABI:
            raise ImportError(f"{path}: has ABI version {version}, this upsweep needs {abi.ABI}")
        for name, (result, arguments, is_status, may_block) in abi.FUNCTIONS.items():
            function = getattr(releasing_gil if may_block else holding_gil, name)
            function.restype, function.argtypes = result, arguments
            if is_status:
                function.errcheck = self._check
            setattr(self, name.removeprefix("upsweep_cuda_"), function)
        sizes = (ctypes.c_int64 * len(abi.STRUCTS))()
        self.sizes(sizes)
        expected = [ctypes.sizeof(struct) for struct in abi.STRUCTS.values()]
        if list(sizes) != expected:
            raise ImportError(f"{path}: its structures have sizes {list(sizes)}, this upsweep's {expected}")
        self.functions = _calls.Functions(self._address, self._check)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"{NAME} has no function upsweep_cuda_{name}")  # set in __init__, unless misspelt

    def _address(self, name: str) -> int | None:
        return ctypes.cast(getattr(self, name), ctypes.c_void_p).value

    def _check(self, status: int, function: Any = None, arguments: Any = None) -> int:
        if status in self._not_errors:
            return status
        text = self.last_error().decode(errors="replace")
        raise ValueError(text) if self._names.get(status) == "INVALID" else CudaError(text)

    def built_for(self) -> list[str]:
        """Return the compute capabilities that the library contains code for, as "9.0"."""
        capabilities = (ctypes.c_int32 * 64)()
        n = self.architectures(capabilities, 64)
        return [f"{c // 10}.{c % 10}" for c in sorted(capabilities[:n])]


def _wheel_folder() -> Path | None:
    """Return the folder of the package upsweep_cuda, which the wheel upsweep-cuda13 installs."""
    from pathlib import Path

    spec = importlib.util.find_spec("upsweep_cuda")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return next((folder for folder in folders if (folder / NAME).exists()), None)


def find() -> Path | None:
    """Return the library's path: UPSWEEP_CUDA_LIBRARY, in this folder, or in the package upsweep_cuda."""
    from pathlib import Path  # here, as it takes a sixth of the package's import

    from_environment = os.environ.get("UPSWEEP_CUDA_LIBRARY")
    if from_environment is not None:
        return Path(from_environment) if from_environment else None
    in_folder = Path(__file__).parent / NAME
    if in_folder.exists():
        return in_folder
    folder = _wheel_folder()
    return None if folder is None else folder / NAME


def _check_wheel(path: Path) -> None:
    """Raise ImportError if the library comes from a wheel upsweep-cuda13 of another version."""
    if path.parent != _wheel_folder():
        return
    from importlib import metadata  # costs as much to import as all of upsweep

    wheel, package = metadata.version("upsweep-cuda13"), metadata.version("upsweep")
    if wheel != package:
        raise ImportError(
            f"{path}: is part of upsweep-cuda13 {wheel}, which needs upsweep {wheel}; this is upsweep {package}: "
            f"pip install 'upsweep[cuda13]=={package}'"
        )


_lock = threading.Lock()
_loaded: Library | None = None


def load() -> Library:
    """Return the library, which the first call loads; raise RuntimeError if there is none.

    A library of another version, or one that the system cannot load, raises ImportError.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                path = find()
                if path is None:
                    from upsweep._backends import _build

                    raise RuntimeError(
                        f"this installation of upsweep has no CUDA library ({NAME}, {_build.cuda}): "
                        "pip install 'upsweep[cuda13]', build upsweep where nvcc is found, or set "
                        "UPSWEEP_CUDA_LIBRARY to its path"
                    )
                _check_wheel(path)
                _loaded = Library(path)
    return _loaded


_checked: set[int] = set()

# CUDA's own descriptions of these errors do not help a user who named a device.
_CAUSES = {
    "cudaErrorInsufficientDriver": "this machine has no NVIDIA driver",  # or, by `_driver_version`, an old one
    "cudaErrorNoDevice": "this machine has no CUDA device",
    "cudaErrorInvalidDevice": "this machine has no CUDA device of that number",
}


def _driver_version() -> str | None:
    """Return the newest version of CUDA that the installed driver runs, None without a driver."""
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if status else f"{version.value // 1000}.{version.value % 1000 // 10}"


def check_device(device: int) -> None:
    """Raise unless the library contains code for this device; the library is asked once for each device."""
    if device in _checked:
        return
    name = ctypes.create_string_buffer(256)
    try:
        load().device_check(device, name, ctypes.byref(ctypes.c_int32()))
    except CudaError as error:
        for code, cause in _CAUSES.items():
            if code in str(error):
                if code == "cudaErrorInsufficientDriver" and (version := _driver_version()):
                    cause = f"its NVIDIA driver runs CUDA up to {version}; the library needs a newer driver"
                raise CudaError(f"CUDA device {device}: {cause}: {error}") from None
        raise
    _checked.add(device)


def synchronize(device: int, stream: int) -> None:
    """Wait until the work on this stream is done."""
    load().copy_to_host(device, stream, None, None, 0)  # copies no bytes, and waits as every copy to the host does


def read_bytes(pointer: int, n_bytes: int, device: int, stream: int) -> bytes:
    """Return bytes of device memory once the work on the stream is done."""
    target = (ctypes.c_char * n_bytes)()
    load().copy_to_host(device, stream, target, pointer, n_bytes)
    return target.raw
