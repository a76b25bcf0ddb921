"""Compiles LLVM IR to machine code and loads it, through llvmlite, which is imported on first use.

No lock of this module is held while LLVM runs: each module has its own LLVM context, and each thread its own
target machines. llvmlite holds a lock during each native call; two threads that compile alternate between
writing IR and running LLVM. Loaded functions are called without llvmlite.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from upsweep._compiler import disk_cache
from upsweep._compiler.llvm.target import Target

_initializing = threading.Lock()
_machines = threading.local()  # the target machines of each thread

# Functions of C's library that compiled code may call.
_LIBRARY_FUNCTIONS = ("sin", "cos", "pow")


def _llvm() -> Any:
    """llvmlite's binding."""
    with _initializing:
        return _initialize()[0]


def _is_old() -> bool:
    """Whether llvmlite is a release that has to be initialized, and asked for opaque pointers."""
    import llvmlite

    return tuple(int(part) for part in llvmlite.__version__.split(".")[:2]) < (0, 45)


@functools.cache
def _initialize() -> tuple[Any, Any]:
    """llvmlite's binding, initialized, and the context of engines.

    An engine outlives the Python object of its module, and with that a context of its own.
    """
    try:
        import llvmlite.binding as binding
    except ImportError as error:
        raise ImportError(
            'formulas are compiled by llvmlite, which is not installed: pip install "upsweep[expr]"'
        ) from error
    if _is_old():
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    library = ctypes.CDLL(None)  # this process: the interpreter itself is linked with C's mathematics
    for name in _LIBRARY_FUNCTIONS:
        binding.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return binding, _new_context(binding)


def _new_context(llvm: Any) -> Any:
    """A context: types and constants that the modules of other threads do not share."""
    if _is_old():
        return llvm.context.ContextRef(llvm.ffi.lib.LLVMPY_ContextCreate(True))
    return llvm.create_context()


@functools.cache
def versions() -> str:
    """What compiled code depends on besides its text: the versions of llvmlite and LLVM, the architecture."""
    llvm = _llvm()
    import llvmlite

    model = " ".join(_placement(llvm).values())
    return f"{llvmlite.__version__} {llvm.llvm_version_info} {llvm.get_default_triple()} {model}"


@functools.cache
def sources() -> str:
    """Return a digest of the sources that generate IR, for cache keys that do not contain the text itself."""
    compiler = Path(__file__).parents[1]
    return disk_cache.source_digest(*(compiler / name for name in ("formulas", "recurrences", "lowering", "llvm")))


def add_symbols(symbols: Mapping[str, int]) -> None:
    """Tell compiled code where functions of other libraries are."""
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
    """The calling thread's target machine, which no other thread may use at the same time."""
    if not hasattr(_machines, target.level):
        setattr(_machines, target.level, _new_machine(target))
    return getattr(_machines, target.level)


def compile_object(text: str, target: Target) -> bytes:
    """The object file of a module in LLVM IR."""
    llvm = _llvm()
    module = llvm.parse_assembly(text, _new_context(llvm))
    module.verify()  # LLVM would end the process over what this raises
    return bytes(_machine(target).emit_object(module))


class Loaded:
    """An object file in memory, for as long as this lives."""

    def __init__(self, code: bytes, target: Target) -> None:
        llvm = _llvm()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly("", _initialize()[1]), _new_machine(target))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._addresses: dict[str, int] = {}

    def address(self, name: str) -> int:
        """The address of a function; looked up once, since the lookup waits for other threads' compilations."""
        if name not in self._addresses:
            self._addresses[name] = int(self._engine.get_function_address(name))
        return self._addresses[name]

    def integer(self, name: str) -> int:
        """What a function without arguments says."""
        return int(ctypes.CFUNCTYPE(ctypes.c_int64)(self.address(name))())


def load(key: str, text: Callable[[], str], target: Target) -> Loaded:
    """A module in LLVM IR, compiled or from the disk; `key` says what its text depends on."""
    key = f"{versions()}\n{target}\n{key}"
    return Loaded(disk_cache.fetch_or_compile(key, lambda: compile_object(text(), target)), target)
