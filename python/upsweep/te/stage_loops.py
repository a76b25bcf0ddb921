"""The loops of one stage over a region: what its splits and fuses make of the axes of its operation."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from upsweep._compiler.loops.expressions import Axis, Expr, binary, constant_of, contains, index_const
from upsweep._compiler.loops.linear import same, simplified
from upsweep.te.stages import Fuse, Split, Stage


def extent_of(axis: Axis) -> Expr:
    """The extent of an axis that was created with one."""
    assert axis.extent is not None
    return axis.extent


class StageLoops:
    """The loops of one stage over a region.

    `extents` are those of all axes. `values` are expressions of the axes by the loops: a leaf's is its loop's
    index or, where that has one step, 0. `guards` are the conditions that cut off the excess of inexact splits. A
    leaf in `outer`, the axes of the loops around, gets a new index.
    """

    def __init__(
        self, stage: Stage, roots: Sequence[Axis], extents: Sequence[Expr], outer: Container[Axis]
    ) -> None:
        self.stage = stage
        self.extents: dict[Axis, Expr] = dict(zip(roots, extents))
        self.values: dict[Axis, Expr] = {}
        self.guards: list[Expr] = []
        self.marks: dict[Axis, frozenset[str]] = {leaf: frozenset({mark}) for leaf, mark in stage.marks.items()}
        for relation in stage.relations:
            if isinstance(relation, Split):
                extent, n_steps = self.extents[relation.parent], index_const(relation.n_steps)
                rest = simplified(binary("floordiv", extent + (relation.n_steps - 1), n_steps))
                self.extents |= {relation.outer: rest, relation.inner: rest, relation.fixed: n_steps}
            else:
                inner = self.extents[relation.inner]
                self.extents[relation.fused] = binary("mul", self.extents[relation.outer], inner)
        for leaf in stage.leaves:
            extent = simplified(self.extents[leaf])
            self.extents[leaf] = extent
            thread = stage.threads.get(leaf)
            if constant_of(extent) == 1:
                self.values[leaf] = index_const(0)
            elif thread is not None:
                self.values[leaf] = Axis(thread.static[0], extent)
            else:  # a loop around may have the same axis, if two stages reduce over it
                self.values[leaf] = Axis(leaf.name, extent, leaf.kind) if leaf in outer else leaf
        for relation in reversed(stage.relations):
            if isinstance(relation, Split):
                self._join(relation)
            else:
                self._unfuse(relation)

    def _join(self, relation: Split) -> None:
        """The value of a split axis, and its guard where the split is inexact."""
        size, extent = self.extents[relation.inner], self.extents[relation.parent]
        value = simplified(binary("mul", self.values[relation.outer], size) + self.values[relation.inner])
        self.values[relation.parent] = value
        if not same(binary("mul", self.extents[relation.outer], size), extent):
            self.guards.append(binary("lt", value, extent))

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

    def indices(self, leaves: Iterable[Axis]) -> list[Axis]:
        """The indices of the loops of some leaves, without those of one step."""
        return [value for leaf in leaves if isinstance(value := self.values[leaf], Axis)]

    def guards_at(self, leaves: Sequence[Axis], depth: int, guards: Iterable[Expr]) -> list[Expr]:
        """The guards that the loops ``leaves[: depth + 1]`` decide, and fewer do not."""
        axis = self.values[leaves[depth]]
        # Guards of reductions belong to the loops of the reduction, which may be written later than these.
        others = [leaf for leaf in self.stage.leaves if leaf not in set(leaves)]
        later = self.indices([*leaves[depth + 1 :], *others])
        decided = [g for g in guards if contains(g, [axis]) and not contains(g, later)]
        if depth == 0:  # and those that no loop of this stage decides
            decided += [g for g in guards if not contains(g, self.indices(self.stage.leaves))]
        return decided
