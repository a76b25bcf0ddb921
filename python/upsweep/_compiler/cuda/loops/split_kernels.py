"""A nest cut into statements that are kernels: one after the other, or in a loop that the host runs.

The end of a kernel is the one barrier that all blocks have. A stage beside a scan is a kernel, and so is a
scan; where a block of a scan needs what another one has computed, each stage of a step becomes a kernel of its
own, and the host launches them step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upsweep._compiler.cuda.loops.binding import sunk
from upsweep._compiler.cuda.loops.keep_states import is_scan
from upsweep._compiler.cuda.loops.rewrite import replaced, rewritten, used_buffers
from upsweep._compiler.loops.expressions import Expr, variable
from upsweep._compiler.loops.statements import Allocate, Block, Buffer, For, If, Produce, Statement, all_statements

__all__ = ["HostLoop", "Piece", "cut_nest", "cut_piece", "with_memory"]


@dataclass(eq=False)
class HostLoop:
    """A loop that the host runs: its index is a size that each launch is told anew."""

    index: Expr
    extent: Expr


@dataclass(eq=False)
class Piece:
    """A statement that is to be one kernel, in loops of the host; `of_scan`: it is a scan, or part of one."""

    statement: Statement
    of_scan: bool
    loops: tuple[HostLoop, ...] = ()


def cut_nest(body: Statement) -> tuple[list[Buffer], list[Piece]]:
    """All buffers that a nest allocates, and its pieces, without their memory."""
    buffers = [each.buffer for each in all_statements(body) if isinstance(each, Allocate)]
    bare = rewritten(body, lambda each: each.body if isinstance(each, Allocate) else each)
    steps = bare.steps if isinstance(bare, Block) else [bare]
    return buffers, [Piece(step, any(map(is_scan, all_statements(step)))) for step in steps]


def cut_piece(piece: Piece) -> list[Piece] | None:
    """The steps of a piece as pieces of their own; None where it is a single one."""
    statement, name = piece.statement, ""
    conditions: list[Expr] = []
    while isinstance(statement, (Produce, If)):
        if isinstance(statement, If):
            conditions.append(statement.condition)
        else:
            name = statement.name
        statement = statement.body
    loops = piece.loops
    if is_scan(statement):
        assert isinstance(statement, For)
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

    return [Piece(wrapped(step), piece.of_scan, loops) for step in steps]


def with_memory(pieces: Sequence[Piece], buffers: Sequence[Buffer]) -> tuple[list[Buffer], list[Statement]]:
    """The buffers that several pieces use, and each piece's statement with the memory of its own."""
    used = [used_buffers(piece.statement) for piece in pieces]
    between = [buffer for buffer in buffers if sum(buffer in each for each in used) > 1]
    own = [buffer for buffer in buffers if buffer not in between]
    return between, [sunk(piece.statement, own) for piece in pieces]
