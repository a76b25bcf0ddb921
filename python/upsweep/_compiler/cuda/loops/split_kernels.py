"""Splitting of a nest into statements that become kernels, launched in sequence or in a loop of the host.

The end of a kernel is the only barrier of all blocks. A stage outside of scans is a kernel, and so is a scan;
where a block of a scan needs what another one has computed, each stage of a step becomes a kernel of its own, and
the host launches them step by step. `program` splits parts until no block needs another one's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.binding import sunk
from upsweep._compiler.cuda.loops.keep_states import scan_loops
from upsweep._compiler.loops.expressions import Expr, variable
from upsweep._compiler.loops.rewrite import replaced, rewritten, used_buffers
from upsweep._compiler.loops.statements import Allocate, Block, Buffer, For, If, Produce, Statement, all_statements


@dataclass(eq=False)
class HostLoop:
    """A loop that the host runs; its index is a size, passed to each launch."""

    index: Expr
    extent: Expr


@dataclass(eq=False)
class Part:
    """A statement that is to be one kernel, in loops of the host; `of_scan`: it is a scan or belongs to one."""

    statement: Statement
    of_scan: bool
    loops: tuple[HostLoop, ...] = ()


def split_nest(body: Statement) -> tuple[list[Buffer], list[Part]]:
    """All buffers that a nest allocates, and its parts without the allocations."""
    buffers = [each.buffer for each in all_statements(body) if isinstance(each, Allocate)]
    bare = rewritten(body, lambda each: each.body if isinstance(each, Allocate) else each)
    steps = bare.steps if isinstance(bare, Block) else [bare]
    return buffers, [Part(step, bool(scan_loops(step))) for step in steps]


def split_part(part: Part) -> list[Part] | None:
    """The steps of a part as parts of their own; None if it has one step."""
    statement, name = part.statement, ""
    conditions: list[Expr] = []
    while isinstance(statement, (Produce, If)):
        if isinstance(statement, If):
            conditions.append(statement.condition)
        else:
            name = statement.name
        statement = statement.body
    loops = part.loops
    if isinstance(statement, For) and statement.axis.kind == "scan":
        loop = HostLoop(variable(statement.axis.name), statement.extent)
        loops = (*loops, loop)
        statement = replaced(statement.body, {statement.axis: loop.index})
    elif not isinstance(statement, Block):
        return None
    steps = statement.steps if isinstance(statement, Block) else [statement]

    def wrapped(step: Statement) -> Statement:
        for condition in reversed(conditions):
            step = If(condition, step)
        return Produce(name, step) if name else step

    return [Part(wrapped(step), part.of_scan, loops) for step in steps]


def with_memory(parts: Sequence[Part], buffers: Sequence[Buffer]) -> tuple[list[Buffer], list[Statement]]:
    """The buffers that several parts use, and each part's statement with the allocation of the others."""
    used = [used_buffers(part.statement) for part in parts]
    between = [buffer for buffer in buffers if sum(buffer in each for each in used) > 1]
    own = [buffer for buffer in buffers if buffer not in between]
    return between, [sunk(part.statement, own) for part in parts]
