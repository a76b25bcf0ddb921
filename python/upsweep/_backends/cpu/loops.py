"""Compilation of loop nests for the CPU: once for each text, then from memory or from the disk cache.

`te.function` calls `compile_nest`; `_backends.cpu._loops` (Cython) runs the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.loops.render import render
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.loops.expressions import Expr
from upsweep._compiler.loops.statements import Buffer, Statement
from upsweep._utils.lru_cache import LRUCache

_loaded: LRUCache[tuple[str, str], jit.Loaded] = LRUCache(256)  # by instruction set and LLVM text


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
