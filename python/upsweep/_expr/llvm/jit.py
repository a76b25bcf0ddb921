"""From LLVM IR to functions in memory, through llvmlite, which is imported by the first who needs it."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import cache
from .target import Target

__all__ = ["Loaded", "add_symbols", "compile_object", "load", "load_object", "sources", "versions"]

_lock = threading.Lock()
_binding: Any = None
_context: Any = None  # None is LLVM's own
_machines: dict[Target, Any] = {}

# Functions of C's library that compiled code may call.
_LIBRARY_FUNCTIONS = ("sin", "cos", "pow")


def _llvm() -> Any:
    global _binding, _context
    if _binding is None:
        try:
            import llvmlite
            import llvmlite.binding as binding
        except ImportError as error:
            raise ImportError(
                'formulas are compiled by llvmlite, which is not installed: pip install "upsweep[expr]"'
            ) from error
        release = tuple(int(part) for part in llvmlite.__version__.split(".")[:2])
        if release < (
            0,
            45,
        ):  # later ones initialise on their own, and refuse to be asked; all their pointers are opaque
            binding.initialize()
            _context = binding.context.ContextRef(binding.ffi.lib.LLVMPY_ContextCreate(True))
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        library = ctypes.CDLL(ctypes.util.find_library("m") or None)
        for name in _LIBRARY_FUNCTIONS:
            binding.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        _binding = binding
    return _binding


def versions() -> str:
    """What compiled code depends on besides its text: the versions of llvmlite and LLVM, the architecture."""
    with _lock:
        llvm = _llvm()
    import llvmlite

    model = " ".join(_placement(llvm).values())
    return f"{llvmlite.__version__} {llvm.llvm_version_info} {llvm.get_default_triple()} {model}"


@functools.cache
def sources() -> str:
    """A digest of what writes IR: for keys of code that are not the text itself."""
    here = Path(__file__).parent
    return cache.source_digest(here, here.parent)


def add_symbols(symbols: Mapping[str, int]) -> None:
    """Tell compiled code where functions of other libraries are."""
    with _lock:
        llvm = _llvm()
        for name, address in symbols.items():
            llvm.add_symbol(name, address)


def _placement(llvm: Any) -> dict[str, str]:
    """How code names its constants. An object's sections are put wherever there is memory.

    In a process whose address space is in pieces that is, now and then, more than 2 GiB from the code; addresses
    of 32 bits do not go so far, and LLVM ends the process then. On other machines llvmlite keeps them together.
    """
    if llvm.get_default_triple().startswith("x86_64"):
        return {"reloc": "static", "codemodel": "large"}  # addresses of 64 bits: as fast, they are loaded once
    return {"reloc": "pic", "codemodel": "small"}


def _new_machine(target: Target) -> Any:
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, jit=True, **_placement(llvm)
    )


def _machine(target: Target) -> Any:
    if target not in _machines:
        _machines[target] = _new_machine(target)
    return _machines[target]


def compile_object(text: str, target: Target) -> bytes:
    """The object file of a module in LLVM IR."""
    with _lock:  # a target machine is of one thread at a time
        llvm = _llvm()
        module = llvm.parse_assembly(text, _context)
        module.verify()  # LLVM would end the process over what this raises
        return bytes(_machine(target).emit_object(module))


class Loaded:
    """An object file in memory, for as long as this lives."""

    def __init__(self, code: bytes, target: Target) -> None:
        with _lock:
            llvm = _llvm()
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly("", _context), _new_machine(target))
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where a function is."""
        return int(self._engine.get_function_address(name))

    def integer(self, name: str) -> int:
        """What a function without arguments says."""
        return int(ctypes.CFUNCTYPE(ctypes.c_int64)(self.address(name))())


def load_object(code: bytes, target: Target) -> Loaded:
    """Load an object file that `compile_object` made."""
    return Loaded(code, target)


def load(key: str, text: Callable[[], str], target: Target) -> Loaded:
    """A module in LLVM IR, compiled or from the disk; `key` says what its text depends on."""
    key = f"{versions()}\n{target}\n{key}"
    return load_object(cache.fetch_or_make(key, lambda: compile_object(text(), target)), target)
