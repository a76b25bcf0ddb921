"""From a nest to a function in memory: compiled once, then from memory or from the disk."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..llvm import jit
from ..llvm.target import TARGETS
from .expressions import Expr
from .render import render
from .statements import Buffer, Statement

__all__ = ["compile_nest"]

_MOST_IN_MEMORY = 256
_Kernel = Callable[[Any, int], None]
_lock = threading.Lock()
_loaded: dict[tuple[str, str], tuple[Any, _Kernel]] = {}


def compile_nest(
    body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], level: str, symbols: Mapping[str, int]
) -> tuple[_Kernel, Any]:
    """The function of a nest, and what its code lives in. Without `symbols`, OpenMP's, nothing is parallel."""
    target = TARGETS[level]
    text = render(body, buffers, sizes, target, bool(symbols))
    with _lock:
        known = _loaded.get((level, text))
    if known is None:
        jit.add_symbols(symbols)
        loaded = jit.load(text, lambda: text, target)
        # ctypes lets other Python threads run during the call.
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address("kernel"))
        known = (loaded, kernel)
        with _lock:
            while len(_loaded) >= _MOST_IN_MEMORY:
                _loaded.pop(next(iter(_loaded)))
            _loaded[level, text] = known
    return known[1], known[0]
