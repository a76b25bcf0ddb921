"""The loops of one stage over a region: what its splits and fuses make of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from upsweep._compiler.loops.expressions import Axis, Expr, binary, index_const
from upsweep._compiler.loops.linear import same, simplified
from upsweep.te.schedule import Fuse, Split, Stage

__all__ = ["Loops", "extent_of"]


def extent_of(axis: Axis) -> Expr:
    """The extent of an axis that was made with one."""
    assert axis.extent is not None
    return axis.extent


class Loops:
    """The loops of one stage over a region: extents of leaves, values of root axes, and guards."""

    def __init__(
        self, stage: Stage, roots: Sequence[Axis], extents: Sequence[Expr], taken: Mapping[Axis, Any]
    ) -> None:
        self.stage = stage
        self.extents: dict[Axis, Expr] = dict(zip(roots, extents))
        self.values: dict[Axis, Expr] = {}
        self.guards: list[Expr] = []
        for relation in stage.relations:
            if isinstance(relation, Split):
                self._split(relation)
            else:
                self.extents[relation.fused] = binary(
                    "mul", self.extents[relation.outer], self.extents[relation.inner]
                )
        for leaf in stage.leaves:
            extent = simplified(self.extents[leaf])
            self.extents[leaf] = extent
            thread = stage.threads.get(leaf)
            if extent.op == "const" and extent.static[0] == 1:
                self.values[leaf] = index_const(0)
            elif thread is not None:
                self.values[leaf] = Axis(thread.static[0], extent)
            else:  # a loop around may have the same axis, if two stages reduce over it
                self.values[leaf] = Axis(leaf.name, extent, leaf.kind) if leaf in taken else leaf
        for relation in reversed(stage.relations):
            if isinstance(relation, Split):
                size = self.extents[relation.inner]
                whole = binary("mul", self.values[relation.outer], size) + self.values[relation.inner]
                self.values[relation.parent] = simplified(whole)
                extent = self.extents[relation.parent]
                if not same(binary("mul", self.extents[relation.outer], size), extent):
                    self.guards.append(binary("lt", self.values[relation.parent], extent))
            else:
                self._unfuse(relation)

    def _split(self, relation: Split) -> None:
        extent = self.extents[relation.parent]
        parts = relation.factor or relation.n_parts
        rest = simplified(binary("floordiv", extent + (parts - 1), index_const(parts)))
        fixed = index_const(parts)
        self.extents[relation.outer], self.extents[relation.inner] = (
            (rest, fixed) if relation.factor else (fixed, rest)
        )

    def _unfuse(self, relation: Fuse) -> None:
        inner = self.extents[relation.inner]
        if inner.op != "const":
            raise ValueError(
                f"{self.stage.op.line}: {self.stage.op.name}: fuse: the inner extent, {inner!r}, is not a "
                "constant; its index would be a division by a size"
            )
        value = self.values[relation.fused]
        self.values[relation.outer] = binary("floordiv", value, inner)
        self.values[relation.inner] = binary("mod", value, inner)
