"""Locates NVIDIA's run-time compiler (NVRTC) and compiles CUDA C++ with it.

NVRTC is not part of upsweep: a CUDA toolkit has it, and so do torch's wheels and NVIDIA's own wheel.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from upsweep._compiler import disk_cache

VARIABLE = "UPSWEEP_NVRTC_LIBRARY"
ADVICE = (
    "formulas on a CUDA device need NVIDIA's run-time compiler (libnvrtc.so), and none was found: "
    f"pip install nvidia-cuda-nvrtc, install a CUDA toolkit, or set {VARIABLE} to its path"
)

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "nvrtcVersion": (ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)),
    "nvrtcGetNumSupportedArchs": (ctypes.POINTER(ctypes.c_int),),
    "nvrtcGetSupportedArchs": (ctypes.POINTER(ctypes.c_int),),
    "nvrtcCreateProgram": (
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p,
        ctypes.c_void_p,
    ),
    "nvrtcDestroyProgram": (ctypes.POINTER(ctypes.c_void_p),),
    "nvrtcCompileProgram": (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "nvrtcGetProgramLogSize": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "nvrtcGetProgramLog": (ctypes.c_void_p, ctypes.c_char_p),
    "nvrtcGetCUBINSize": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "nvrtcGetCUBIN": (ctypes.c_void_p, ctypes.c_char_p),
    "nvrtcGetPTXSize": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "nvrtcGetPTX": (ctypes.c_void_p, ctypes.c_char_p),
}  # fmt: skip


class CompileError(RuntimeError):
    """NVRTC refused a text; the message has the compiler's log."""


class Code(NamedTuple):
    """Code for a device: a cubin, or PTX which the driver compiles where the compiler is older than the device."""

    data: bytes
    is_cubin: bool


class Compiler:
    """One NVRTC, loaded."""

    def __init__(self, path: str) -> None:
        self.path = path
        # The compiler looks for its second half by name alone; if it is loaded already, it is found.
        for builtins in sorted(glob.glob(str(Path(path).parent / "libnvrtc-builtins.so*")))[:1]:
            ctypes.CDLL(builtins)
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._library.nvrtcGetErrorString.argtypes = (ctypes.c_int,)
        for name, arguments in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = ctypes.c_int, arguments
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        # Without textures and the runtime's types, which no text names and which take longer to read than a text.
        self._minimal = ("--minimal",) if self.version >= (12, 4) else ()
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        result = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", result)
        self.architectures = sorted(result)
        self._lock = threading.Lock()

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            text = self._library.nvrtcGetErrorString(status).decode()
            raise CompileError(f"{name} of {self.path}: {text}")

    def target(self, capability: int) -> tuple[int, bool]:
        """The architecture to compile for on a device of this capability (90 for 9.0); whether to a cubin."""
        if capability in self.architectures:
            return capability, True
        older = [arch for arch in self.architectures if arch <= capability]
        if not older:
            raise CompileError(
                f"NVRTC {self.version[0]}.{self.version[1]} ({self.path}) compiles for compute capability "
                f"{self.architectures[0] / 10} and newer, the device has {capability / 10}"
            )
        return older[-1], False

    def compile(self, text: str, capability: int, options: tuple[str, ...] = ()) -> Code:
        """Code for a device of this compute capability; if the text is refused, the error has the log."""
        architecture, is_cubin = self.target(capability)
        arguments = ["--std=c++17", *self._minimal, *options]
        if not any(option.startswith("--gpu-architecture") for option in options):
            arguments.insert(0, f"--gpu-architecture={'sm' if is_cubin else 'compute'}_{architecture}")
        program = ctypes.c_void_p()
        with self._lock:
            self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"pairs.cu", 0, None, None)
            try:
                array = (ctypes.c_char_p * len(arguments))(*(option.encode() for option in arguments))
                status = self._library.nvrtcCompileProgram(program, len(arguments), array)
                if status:
                    name = self._library.nvrtcGetErrorString(status).decode()
                    log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
                    raise CompileError(f"nvrtcCompileProgram of {self.path}: {name}\n{log}")
                return Code(self._bytes(program, "CUBIN" if is_cubin else "PTX"), is_cubin)
            finally:
                self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, data)
        return data.raw


def candidates() -> Iterator[str]:
    """Where NVRTC may be, what was named first: the variable, a toolkit, wheels, then the loader's own search."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        if named:
            yield named
        return
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield from _newest(Path(os.environ[variable]) / "lib64")
    for folder in dict.fromkeys(filter(None, sys.path)):
        for wheel in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"):
            yield from _newest(Path(folder) / wheel)
    yield from _newest(Path("/usr/local/cuda/lib64"))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _newest(folder: Path) -> Iterator[str]:
    result = glob.glob(str(folder / "libnvrtc.so*"))
    yield from sorted((path for path in result if "alt" not in Path(path).name), key=len)[:1]


_loading = threading.Lock()
_loaded: dict[str | None, Compiler] = {}


def load() -> Compiler:
    """The run-time compiler, loaded by the first call; without one, a RuntimeError says what to install."""
    named = os.environ.get(VARIABLE)
    with _loading:
        if named not in _loaded:
            failures = []
            for path in candidates():
                try:
                    _loaded[named] = Compiler(path)
                    break
                except OSError as error:
                    if "/" in path:
                        failures.append(f"{path}: {error}")
            else:
                raise RuntimeError("; ".join([ADVICE, *failures]))
        return _loaded[named]


def fetch_or_compile(text: str, options: tuple[str, ...], capability: int) -> bytes:
    """The text's code, from the disk if it is there: then no compiler is needed."""
    key = f"cuda {capability} {' '.join(options)}\n{text}"
    return disk_cache.fetch_or_compile(key, lambda: load().compile(text, capability, options).data)
