"""Barriers of a block's threads, and the check that no block needs another one's values.

A barrier stands where all threads of the block pass: outside of conditions on threads. It precedes the first
statement that accesses an element which another thread has accessed since the last barrier, if one of the two
accesses is a store. A kernel has no barrier for all its blocks: where one block reads what another one writes, it
has to be several kernels (`split_kernels`). What no barrier separates is fused. `program` calls these functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.conflicts import are_apart, same_extents, tags_that_agree
from upsweep._compiler.cuda.loops.kernel import Kernel
from upsweep._compiler.loops.accesses import Access, accesses_by_buffer, accesses_of
from upsweep._compiler.loops.expressions import Axis, contains, has_loads, key
from upsweep._compiler.loops.linear import same
from upsweep._compiler.loops.rewrite import block_of, rewritten, with_inner
from upsweep._compiler.loops.statements import Barrier, Block, For, If, Statement, Store


class BlocksConflict(ValueError):
    """One block needs another one's values within a kernel."""


def check_blocks(kernel: Kernel, name: str) -> None:
    """Raise where one block may read what another one writes."""
    axes, scopes = kernel.axes, kernel.scopes
    blocks = {tag for tag in axes if not tag.startswith(THREAD)}
    if not blocks:
        return
    for buffer, accesses in accesses_by_buffer(kernel.statement).items():
        scope = scopes.get(buffer)
        if scope is not None and scope.level != "grid":
            continue
        copies = set(scope.copies) if scope is not None else set()
        for store in (access for access in accesses if access.is_store):
            for access in accesses:
                conflicting = blocks - copies - tags_that_agree(store, access, axes, _alone(store, access, axes))
                if conflicting and not are_apart(store, access, ()):
                    tag = sorted(conflicting)[0]
                    verb = "written" if access.is_store else "read"
                    raise BlocksConflict(
                        f"{name}: on cuda, {buffer.name} is written by one block and {verb} by another "
                        f"({tag}): {_text(store)} and {_text(access)}. The blocks of a kernel cannot wait for "
                        "each other; bind that axis to threadIdx, whose threads can, or leave it unbound"
                    )


def _text(access: Access) -> str:
    return f"{access.buffer.name}[{', '.join(map(repr, access.indices))}]"


def _alone(a: Access, b: Access, axes: Mapping[str, Axis]) -> frozenset[str]:
    """The thread axes that neither has: both statements run in their first step alone."""
    if a.target is None or b.target is None:
        return frozenset()
    return frozenset(axes) - a.tags - b.tags


# Accesses, and the loops that have advanced since: their indices have other values now. A set of loops that is a
# superset of another one adds nothing: what is disjoint with fewer loops at their step is disjoint with more.
_Pending = dict[Access, tuple[frozenset[Axis], ...]]


class _Insertion:
    """The insertion of barriers into one kernel."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.axes, self.extents, self.scopes, self.name = kernel.axes, kernel.extents, kernel.scopes, name
        self.threads = {tag: axis for tag, axis in kernel.axes.items() if tag.startswith(THREAD)}
        self.known: dict[tuple[Access, Access], bool] = {}
        self.accesses: dict[Statement, list[Access]] = {}

    def seen(self, statement: Statement, around: tuple[For, ...]) -> list[Access]:
        """The accesses of a statement to elements that other threads can access."""
        if statement not in self.accesses:
            whole: Statement = statement
            for each in reversed(around):
                whole = For(each.axis, each.extent, whole, each.marks, each.tag)
            private = {buffer for buffer, scope in self.scopes.items() if scope.level == "thread"}
            self.accesses[statement] = [each for each in accesses_of(whole) if each.buffer not in private]
        return self.accesses[statement]

    def conflict(self, a: Access, b: Access) -> bool:
        """Whether two threads may access one element, one of them to store to it."""
        if a.buffer is not b.buffer or not (a.is_store or b.is_store):
            return False
        if (a, b) not in self.known:
            copies = set(self.scopes[a.buffer].copies) if a.buffer in self.scopes else set()
            same_block = frozenset(self.axes) - frozenset(self.threads)
            agreed = tags_that_agree(a, b, self.axes, _alone(a, b, self.axes) | same_block)
            self.known[a, b] = not set(self.threads) <= agreed | copies
        return self.known[a, b]

    def clash(self, before: _Pending, now: list[Access], around: tuple[For, ...]) -> Access | None:
        """The first access to an element that another thread may have accessed since the last barrier."""
        running = {each.axis for each in around if not each.tag.startswith(THREAD)}
        for a, since in before.items():
            for b in now:
                if self.conflict(a, b) and not all(are_apart(a, b, running - gone) for gone in since):
                    return b
        return None

    def is_uniform(self, statement: Statement) -> bool:
        """Whether all threads of a block enter it together."""
        if isinstance(statement, For):
            return not statement.tag.startswith(THREAD) or same_extents(
                self.extents[statement.tag], statement.extent
            )
        if isinstance(statement, If):
            return not contains(statement.condition, self.threads.values()) and not has_loads(statement.condition)
        return not isinstance(statement, Store)

    def walk(self, statement: Statement, pending: _Pending, around: tuple[For, ...]) -> tuple[Statement, _Pending]:
        """The statement with its barriers, and the accesses since the last one."""
        if not isinstance(statement, Block) and self.clash(pending, self.seen(statement, around), around):
            new, after = self.inside(statement, {}, around)
            return block_of(Barrier(), new), after
        return self.inside(statement, pending, around)

    def inside(
        self, statement: Statement, pending: _Pending, around: tuple[For, ...]
    ) -> tuple[Statement, _Pending]:
        """The same for a statement before which no barrier is needed, or that is a block."""
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
        # After a condition that did not hold, the accesses before it are still pending.
        return result, _both(pending, after) if isinstance(statement, If) else after

    def loop(self, loop: For, pending: _Pending, around: tuple[For, ...]) -> tuple[Statement, _Pending]:
        """A loop, repeated until the accesses pending at the start of a step no longer grow."""
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
        accesses: _Pending = {access: (frozenset(),) for access in self.seen(statement, around)}
        within = self.clash(accesses, list(accesses), around)
        if within is not None:
            raise ValueError(
                f"{self.name}: on cuda, {_text(within)} is of several threads inside of one bound loop, where "
                "they cannot wait for each other; compute the stage at a loop outside of threadIdx, or bind it "
                "as its reader is"
            )
        return statement, _both(pending, accesses)


def _both(before: _Pending, after: _Pending) -> _Pending:
    """The accesses pending in either; `before` itself if it contains the others."""
    result = before
    for access, since in after.items():
        known = result.get(access, ())
        new = [gone for gone in since if not any(gone <= each for each in known)]
        if new:
            minimal = [each for each in known if not any(each < gone for gone in new)]
            result = dict(before) if result is before else result
            result[access] = (*minimal, *new)
    return result


def with_barriers(kernel: Kernel, name: str) -> Statement:
    """The kernel's statement with its barriers; ValueError where threads need values and cannot wait."""
    return _Insertion(kernel, name).walk(kernel.statement, {}, ())[0]


def fused(statement: Statement) -> Statement:
    """The statement with successive loops of one thread axis fused, and successive equal conditions.

    No barrier stands between them, so that no thread needs what another one has computed in them.
    """
    return rewritten(statement, _fused_block)


def _fused_block(statement: Statement) -> Statement:
    if not isinstance(statement, Block):
        return statement
    steps: list[Statement] = []
    for step in statement.steps:
        fusion = _fusion(steps[-1], step) if steps else None
        if fusion is None:
            steps.append(step)
        else:
            steps[-1] = fusion
    return block_of(*steps) if steps else statement


def _fusion(first: Statement, second: Statement) -> Statement | None:
    if isinstance(first, For) and isinstance(second, For):
        is_one = first.axis is second.axis and same(first.extent, second.extent)
        if first.tag and is_one:
            body = _fused_block(block_of(first.body, second.body))
            return For(first.axis, first.extent, body, first.marks, first.tag)
    if isinstance(first, If) and isinstance(second, If):
        is_one = key(first.condition) == key(second.condition)
        if is_one and not has_loads(first.condition):
            return If(first.condition, _fused_block(block_of(first.body, second.body)))
    return None
