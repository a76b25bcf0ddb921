"""Compilation of loop nests for the CPU: once for each text, then from memory or from the disk cache.

`te.function` calls `compile_nest`; `_backends.cpu._loops` (Cython) runs the function. Compiled nests share
OpenMP's thread pool with the native kernels.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence

import upsweep._backends.cpu._machine as _machine
from upsweep._backends.cpu import _loops
from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.loops.parallel_for import POLL, SYMBOLS
from upsweep._compiler.llvm.loops.render import render
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.loops.expressions import Expr
from upsweep._compiler.loops.statements import Buffer, Statement
from upsweep._utils.lru_cache import LRUCache

_loaded: LRUCache[tuple[str, str], jit.Loaded] = LRUCache(256)  # by instruction set and LLVM text


@functools.cache
def symbols() -> dict[str, int]:
    """Return the addresses of the functions that a nest may call; without OpenMP only that of `POLL`."""
    addresses = {POLL: _loops.poll_address()}
    if _machine.openmp_version():
        library = ctypes.CDLL(_machine.__file__)  # linked to OpenMP's library
        for name in SYMBOLS:
            addresses[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return addresses


def compile_nest(
    body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], level: str, symbols: Mapping[str, int]
) -> jit.Loaded:
    """Return the function ``kernel`` of a nest. `symbols` are the functions that it may call, see `render`."""
    target = TARGETS[level]
    text = render(body, buffers, sizes, target, symbols)

    def load() -> jit.Loaded:
        jit.add_symbols(symbols)
        return jit.load(text, lambda: text, target)

    return _loaded.get_or_build((level, text), load)
