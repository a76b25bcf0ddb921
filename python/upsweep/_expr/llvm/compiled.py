"""From a reduction to the machine code of its tiles: compiled once, then from memory or from the disk."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import cache
from ..lower import lower
from . import jit
from .kernels import cost, render
from .target import TARGETS

if TYPE_CHECKING:
    from ..reduction import PairReduction

__all__ = ["CompiledReduction"]


@functools.cache
def _made_by() -> str:
    """What all keys have in common: LLVM and the sources of what writes the code."""
    here = Path(__file__).parent
    return f"{jit.versions()} {cache.source_digest(here, here.parent)}"


class CompiledReduction:
    """The tiles of a reduction for one instruction set; each is compiled when it is asked for."""

    def __init__(self, reduction: PairReduction, level: str) -> None:
        self.reduction = reduction
        self.target = TARGETS[level]
        self.program = lower(reduction)
        self.lanes = self.target.lanes(reduction.dtype)
        self.cost = cost(self.program, reduction)

    def tile(self, lanes_are: str) -> tuple[int, Any]:
        """The address of the tile whose lanes are "rows" or "columns", and what its code lives in."""
        key = f"{_made_by()}\n{self.target}\n{lanes_are}\n{self.reduction.key()}"
        code = cache.fetch(key)
        if code is None:
            code = jit.compile_object(render(self.program, self.reduction, self.target, lanes_are), self.target)
            cache.store(key, code)
        loaded = jit.load_object(code, self.target)
        return loaded.address("tile"), loaded
