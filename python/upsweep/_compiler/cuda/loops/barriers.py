"""Where the threads of a block have to wait for each other, and what no waiting makes right.

A barrier stands where all threads of the block come by: outside of conditions on threads. It is put in front of
the first statement that touches what another thread has touched since the last one, if one of the two writes
it. A kernel has no barrier for all its blocks: where one block reads what another one writes, it has to be
several kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from upsweep._compiler.cuda.loops.accesses import Access, accesses_of, are_apart, same_extents, tags_that_agree
from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.memory_scopes import Place
from upsweep._compiler.cuda.loops.rewrite import block_of, with_inner
from upsweep._compiler.loops.expressions import Axis, Expr, contains, has_loads
from upsweep._compiler.loops.statements import Barrier, Block, Buffer, For, If, Statement, Store

__all__ = ["BlocksApart", "check_blocks", "with_barriers"]


class BlocksApart(ValueError):
    """One block would need another one's values within a kernel."""


def check_blocks(
    statement: Statement, axes: Mapping[str, Axis], places: Mapping[Buffer, Place], name: str
) -> None:
    """Raise where one block may read what another one writes."""
    blocks = {tag for tag in axes if not tag.startswith(THREAD)}
    if not blocks:
        return
    by_buffer: dict[Buffer, list[Access]] = {}
    for access in accesses_of(statement):
        place = places.get(access.buffer)
        if place is None or place.level == "grid":
            by_buffer.setdefault(access.buffer, []).append(access)
    for buffer, accesses in by_buffer.items():
        stores = [access for access in accesses if access.is_store]
        copies = set(places[buffer].copies) if buffer in places else set()
        for store in stores:
            for access in accesses:
                apart = blocks - copies - tags_that_agree(store, access, axes, _alone(store, access, axes))
                if apart and not are_apart(store, access, ()):
                    tag = sorted(apart)[0]
                    raise BlocksApart(
                        f"{name}: on cuda, {buffer.name} is written by one block and {_verb(access)} by another "
                        f"({tag}): {_text(store)} and {_text(access)}. The blocks of a kernel cannot wait for "
                        "each other; bind that axis to threadIdx, whose threads can, or leave it unbound"
                    )


def _verb(access: Access) -> str:
    return "written" if access.is_store else "read"


def _text(access: Access) -> str:
    return f"{access.buffer.name}[{', '.join(map(repr, access.indices))}]"


def _alone(a: Access, b: Access, axes: Mapping[str, Axis]) -> frozenset[str]:
    """The thread axes that neither has: both statements run in their first step alone."""
    if a.target is None or b.target is None:
        return frozenset()
    return frozenset(axes) - a.tags - b.tags


# Accesses, and the loops that have gone on since: their indices are other ones now. A set of loops that is part of
# another one says nothing new: what is apart with fewer loops at their step is apart with more.
_Pending = dict[Access, tuple[frozenset[Axis], ...]]


class _Writer:
    """One walk over a kernel."""

    def __init__(
        self,
        axes: Mapping[str, Axis],
        extents: Mapping[str, list[Expr]],
        places: Mapping[Buffer, Place],
        name: str,
    ) -> None:
        self.axes, self.extents, self.places, self.name = axes, extents, places, name
        self.threads = {tag: axis for tag, axis in axes.items() if tag.startswith(THREAD)}
        self.known: dict[tuple[int, int], bool] = {}
        self.accesses: dict[int, list[Access]] = {}
        self.kept: list[Statement] = []  # whose ids are keys

    def seen(self, statement: Statement, around: tuple[For, ...]) -> list[Access]:
        """What a statement touches that other threads can touch."""
        if id(statement) not in self.accesses:
            whole: Statement = statement
            for each in reversed(around):
                whole = For(each.axis, each.extent, whole, each.marks, each.tag)
            self.kept.append(statement)
            self.accesses[id(statement)] = [
                access for access in accesses_of(whole) if not self.is_private(access.buffer)
            ]
        return self.accesses[id(statement)]

    def is_private(self, buffer: Buffer) -> bool:
        place = self.places.get(buffer)
        return place is not None and place.level == "thread"

    def conflict(self, a: Access, b: Access) -> bool:
        """Whether two threads may touch one element, one of them to write it."""
        if a.buffer is not b.buffer or not (a.is_store or b.is_store):
            return False
        pair = (id(a), id(b))
        if pair not in self.known:
            copies = set(self.places[a.buffer].copies) if a.buffer in self.places else set()
            same_block = frozenset(self.axes) - frozenset(self.threads)
            agreed = tags_that_agree(a, b, self.axes, _alone(a, b, self.axes) | same_block)
            self.known[pair] = not set(self.threads) <= agreed | copies
        return self.known[pair]

    def clash(self, before: _Pending, now: list[Access], around: tuple[For, ...]) -> Access | None:
        """What is touched now that another thread may have touched since the last barrier."""
        here = {each.axis for each in around if not each.tag.startswith(THREAD)}
        for a, since in before.items():
            for b in now:
                if self.conflict(a, b) and not all(are_apart(a, b, here - gone) for gone in since):
                    return b
        return None

    def is_uniform(self, statement: Statement) -> bool:
        """Whether all threads of a block go into it together."""
        if isinstance(statement, For):
            return not statement.tag.startswith(THREAD) or same_extents(
                self.extents[statement.tag], statement.extent
            )
        if isinstance(statement, If):
            return not contains(statement.condition, self.threads.values()) and not has_loads(statement.condition)
        return not isinstance(statement, Store)

    def walk(self, statement: Statement, pending: _Pending, around: tuple[For, ...]) -> tuple[Statement, _Pending]:
        """The statement with its barriers, and what was touched since the last one."""
        if not isinstance(statement, Block) and self.clash(pending, self.seen(statement, around), around):
            new, after = self.inside(statement, {}, around)
            return block_of(Barrier(), new), after
        return self.inside(statement, pending, around)

    def inside(
        self, statement: Statement, pending: _Pending, around: tuple[For, ...]
    ) -> tuple[Statement, _Pending]:
        """The same for a statement before which there is no need to wait, or that is a block."""
        if not self.is_uniform(statement):
            return self.whole(statement, pending, around)
        if isinstance(statement, Block):
            steps: list[Statement] = []
            for step in statement.steps:
                new, pending = self.walk(step, pending, around)
                steps.append(new)
            return block_of(*steps), pending
        if isinstance(statement, For):
            return self.loop(statement, pending, around)
        after = pending

        def inner(body: Statement) -> Statement:
            nonlocal after
            new, after = self.walk(body, pending, around)
            return new

        result = with_inner(statement, inner)
        # Past a condition that did not hold, what was touched before is still to be waited for.
        return result, _both(pending, after) if isinstance(statement, If) else after

    def loop(self, loop: For, pending: _Pending, around: tuple[For, ...]) -> tuple[Statement, _Pending]:
        """Its steps follow each other, but for those of a thread axis; written until that is settled."""
        inside = (*around, loop)
        carried = pending
        while True:
            body, after = self.walk(loop.body, carried, inside)
            again = {access: tuple(gone | {loop.axis} for gone in since) for access, since in after.items()}
            more = _both(carried, again)
            if loop.tag or more is carried:
                new = For(loop.axis, loop.extent, body, loop.marks, loop.tag)
                is_whole = bool(loop.tag) and same_extents(self.extents[loop.tag], loop.extent)
                return new, after if is_whole else _both(pending, after)
            carried = more

    def whole(
        self, statement: Statement, pending: _Pending, around: tuple[For, ...]
    ) -> tuple[Statement, _Pending]:
        """A statement in which no barrier can stand."""
        mine: _Pending = {access: (frozenset(),) for access in self.seen(statement, around)}
        within = self.clash(mine, list(mine), around)
        if within is not None:
            raise ValueError(
                f"{self.name}: on cuda, {_text(within)} is of several threads inside of one bound loop, where "
                "they cannot wait for each other; compute the stage at a loop outside of threadIdx, or bind it "
                "as its reader is"
            )
        return statement, _both(pending, mine)


def _both(before: _Pending, after: _Pending) -> _Pending:
    """What is pending in either; `before` itself if that says all of it."""
    found = before
    for access, since in after.items():
        known = found.get(access, ())
        new = [gone for gone in since if not any(gone <= each for each in known)]
        if new:
            kept = [each for each in known if not any(each < gone for gone in new)]
            found = dict(before) if found is before else found
            found[access] = (*kept, *new)
    return found


def with_barriers(
    statement: Statement, axes: Mapping[str, Axis], extents: Mapping[str, list[Expr]],
    places: Mapping[Buffer, Place], name: str,
) -> Statement:  # fmt: skip
    """The kernel with the barriers that it needs.

    Raises
    ------
    ValueError
        Threads need each other's values where they cannot wait.
    """
    return _Writer(axes, extents, places, name).walk(statement, {}, ())[0]
