"""From a reduction to the machine code of its tiles: compiled once, then from memory or from the disk."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import cache
from ..lower import lower
from . import jit
from .kernels import LONGEST_DISTANCE, LONGEST_VECTOR, cost, render
from .prepare import part
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
        self.program = lower(reduction, long=LONGEST_DISTANCE, unrolled=LONGEST_VECTOR)
        self.lanes = self.target.lanes(reduction.dtype)
        parted, prepared = part(self.program, "j" if reduction.rows == "i" else "i")
        self.n_prepared = len(prepared)  # the numbers that each column is given
        self.cost = cost(parted, reduction)

    def tile(self, lanes_are: str) -> tuple[int, int, int, Any]:
        """The address of the tile whose lanes are "rows" or "columns", that of `prepare` or 0, the bytes of its
        workspace, and what the code lives in.
        """
        key = f"{_made_by()}\n{self.target}\n{lanes_are}\n{self.reduction.key()}"
        code = cache.fetch(key)
        if code is None:
            code = jit.compile_object(render(self.program, self.reduction, self.target, lanes_are), self.target)
            cache.store(key, code)
        loaded = jit.load_object(code, self.target)
        prepare = loaded.address("prepare") if self.n_prepared else 0
        return loaded.address("tile"), prepare, loaded.integer("workspace"), loaded
