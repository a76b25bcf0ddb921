"""From a nest to a function in memory: compiled once, then from memory or from the disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.loops.render import render
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.loops.expressions import Expr
from upsweep._compiler.loops.statements import Buffer, Statement

__all__ = ["compile_nest"]

_MOST_IN_MEMORY = 256
_lock = threading.Lock()
_loaded: dict[tuple[str, str], jit.Loaded] = {}


def compile_nest(
    body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], level: str, symbols: Mapping[str, int]
) -> jit.Loaded:
    """The function ``kernel`` of a nest. `symbols` are the functions that it may call, see `render`."""
    target = TARGETS[level]
    text = render(body, buffers, sizes, target, symbols)
    with _lock:
        known = _loaded.get((level, text))
    if known is None:
        jit.add_symbols(symbols)
        known = jit.load(text, lambda: text, target)
        with _lock:
            while len(_loaded) >= _MOST_IN_MEMORY:
                _loaded.pop(next(iter(_loaded)))
            _loaded[level, text] = known
    return known
