"""Compiled tiles of a pair reduction: code generation, memory cache and disk cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upsweep._compiler.llvm import jit
from upsweep._compiler.llvm.pairs.column_values import part
from upsweep._compiler.llvm.pairs.kernel import LONGEST_DISTANCE, LONGEST_VECTOR, cost, render
from upsweep._compiler.llvm.target import TARGETS
from upsweep._compiler.lowering.lower import lower

if TYPE_CHECKING:
    from upsweep._compiler.formulas.reduction import PairReduction

__all__ = ["CompiledReduction"]


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
        loaded = jit.load(
            f"{jit.sources()}\n{lanes_are}\n{self.reduction.key()}",
            lambda: render(self.program, self.reduction, self.target, lanes_are),
            self.target,
        )
        prepare = loaded.address("prepare") if self.n_prepared else 0
        return loaded.address("tile"), prepare, loaded.integer("workspace"), loaded
