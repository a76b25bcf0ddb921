"""A nest as kernels of a device: their statements, their text, and what a launch with known sizes needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from upsweep._compiler.cuda.loops.accesses import constant
from upsweep._compiler.cuda.loops.barriers import BlocksApart, check_blocks, with_barriers
from upsweep._compiler.cuda.loops.binding import MAX_THREADS, THREAD, bind, least_threads, tag_extents
from upsweep._compiler.cuda.loops.fuse_loops import fused
from upsweep._compiler.cuda.loops.keep_states import keep_states
from upsweep._compiler.cuda.loops.memory_scopes import MOST_IN_REGISTERS, Place, place_buffers
from upsweep._compiler.cuda.loops.prefetch import load_ahead
from upsweep._compiler.cuda.loops.render import Layout, render_kernel, size_of
from upsweep._compiler.cuda.loops.rewrite import rewritten, used_buffers
from upsweep._compiler.cuda.loops.split_kernels import HostLoop, Piece, cut_nest, cut_piece, with_memory
from upsweep._compiler.cuda.loops.tile_rows import choose_rows, in_rows
from upsweep._compiler.loops.expressions import Axis, Expr
from upsweep._compiler.loops.printing import expression_text, nest_text
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Allocate, Block, Buffer, Statement

__all__ = ["WIDE", "Kernel", "Launch", "Plan", "Program", "programs_of", "text_of"]

KERNELS = Path(__file__).parents[1] / "kernels"
MOST_BLOCKS = 2**31 - 1  # of a launch
_ROWS = "blockIdx.x"  # the thread axis of which a block may take several steps
_ALIGNED = 256  # bytes, of buffers in the device's memory
_ITEM = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}


# Columns for which one block, whose threads wait for each other, is as fast as a launch for each step.
WIDE = 4096


@dataclass
class Kernel:
    """One kernel: its statement, as it is printed and rendered, and where its buffers lie."""

    name: str
    statement: Statement
    axes: dict[str, Axis]
    extents: dict[str, list[Expr]]
    places: dict[Buffer, Place]
    loops: tuple[HostLoop, ...] = ()

    def title(self) -> str:
        """The kernel's grid, for those who read the nest."""
        told = [f"{tag} < {' or '.join(expression_text(e) for e in each)}" for tag, each in self.extents.items()]
        each = "".join(f", for {loop.index!r} < {expression_text(loop.extent)}" for loop in self.loops)
        return f"// {self.name}: {', '.join(told) or 'one thread'}{each}"


@dataclass(frozen=True)
class Launch:
    """One kernel's grid for some sizes."""

    kernel: str
    n_blocks: int
    n_threads: int
    shared_bytes: int
    loops: tuple[tuple[int, int], ...] = ()  # of the host: each index's place in the numbers, and its steps


@dataclass(frozen=True)
class Plan:
    """What a call with some sizes launches."""

    launches: tuple[Launch, ...]
    in_shared: frozenset[Buffer]
    sizes: tuple[int, ...]  # and room for the indices of the host's loops
    scratch: tuple[int, ...]  # offsets in a workspace of buffers between kernels
    rest: tuple[tuple[int, bool], ...]  # numbers after the sizes; whether each is an offset in the workspace
    workspace_bytes: int


def _scoped(statement: Statement, places: dict[Buffer, Place]) -> Statement:
    """The statement with its buffers' memory named."""

    def change(each: Statement) -> Statement:
        if isinstance(each, Allocate):
            each.buffer.scope = _scope(places[each.buffer])
        return each

    return rewritten(statement, change)


def _scope(place: Place) -> str:
    if place.level == "thread":
        count = place.count() or 1
        return f"{'registers' if count <= MOST_IN_REGISTERS else 'stack'}: {count} of each thread"
    if place.level == "block":
        sizes = " * ".join(expression_text(e, inside=True) for e in place.extents() if constant(e) != 1)
        return f"shared: {sizes or 1} of each block"
    return "global"


class Program:
    """The kernels of a nest.

    Parameters
    ----------
    body : Statement
        The nest, as it is lowered for any target.
    buffers : list of Buffer
        Those of the call's arrays.
    sizes : list of Expr
        All symbolic sizes.
    free : collection of int
        Ids of the axes of stages that the schedule says nothing of.
    name : str
        The function's, in messages.
    wide : bool
        Scans whose columns all need each other take several blocks, launched step by step, instead of one.

    Raises
    ------
    ValueError
        A thread axis is bound twice, blocks need each other's values, threads need them where they cannot wait,
        or a block has more threads than there are.
    """

    def __init__(
        self, body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], free: Collection[int], name: str,
        wide: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.buffers, self.sizes, self.wide = name, list(buffers), list(sizes), wide
        self.widths: list[Expr] = []
        allocated, pieces = cut_nest(body)
        self.kernels: list[Kernel] = []
        while not self.kernels:
            self.between, statements = with_memory(pieces, allocated)
            for n, (piece, statement) in enumerate(zip(pieces, statements)):
                try:
                    self.kernels.append(self._kernel(f"kernel_{n}", statement, free, piece))
                except BlocksApart as needed:
                    finer = cut_piece(piece)
                    if finer is None:
                        self.kernels.append(self._kernel_together(f"kernel_{n}", statement, free, piece, needed))
                        continue
                    pieces[n : n + 1] = finer
                    self.kernels = []
                    break
            if not pieces:
                break
        for buffer in self.between:
            buffer.scope = "global"
        # Now, since another program may be made of the same buffers.
        self.text = self._nest_text()
        self._lay_out()

    def _kernel_together(
        self, name: str, statement: Statement, free: Collection[int], piece: Piece, needed: BlocksApart
    ) -> Kernel:
        """A kernel whose blocks needed each other's values, with none but those that the schedule asks for."""
        try:
            return self._kernel(name, statement, free, piece, apart=False)
        except BlocksApart:
            raise needed from None

    def _kernel(
        self, name: str, statement: Statement, free: Collection[int], piece: Piece, apart: bool = True
    ) -> Kernel:
        bound = bind(statement, free, piece.of_scan, self.wide, apart)
        self.widths += bound.widths
        axes, statement = bound.axes, bound.statement
        if _ROWS in bound.free:
            n_rows = choose_rows(statement, axes[_ROWS])
            statement = in_rows(statement, axes[_ROWS], n_rows) if n_rows > 1 else statement
        kept = load_ahead(keep_states(statement, axes))
        places = place_buffers(kept, axes)
        extents = tag_extents(kept)
        check_blocks(kept, axes, places, self.name)
        final = _scoped(fused(with_barriers(kept, axes, extents, places, self.name)), places)
        self._check_threads(least_threads(extents), {tag: extents[tag] for tag in axes if tag.startswith(THREAD)})
        return Kernel(name, final, axes, extents, places, piece.loops)

    def _check_threads(self, n_threads: int, extents: dict[str, list[Expr]]) -> None:
        if n_threads > MAX_THREADS:
            told = ", ".join(f"{tag} of {' or '.join(map(repr, each))}" for tag, each in extents.items())
            raise ValueError(f"{self.name}: a block has {MAX_THREADS} threads at most, got {n_threads}: {told}")

    def is_wide(self, sizes: Sizes) -> bool:
        """Whether a scan that one block takes has `WIDE` columns and more."""
        return any(evaluator(width)(sizes) >= WIDE for width in self.widths)

    @property
    def item_sizes(self) -> list[int]:
        """The bytes of an element of each of the call's arrays."""
        return [_ITEM[buffer.dtype] for buffer in self.buffers]

    def blocks_buffers(self) -> frozenset[Buffer]:
        """The buffers that lie in shared memory where it has room for all."""
        places = [place for kernel in self.kernels for place in kernel.places.values()]
        return frozenset(place.buffer for place in places if place.level == "block")

    # ---- text ----

    def _nest_text(self) -> str:
        scratch = [nest_text(Allocate(buffer, Block([]))) for buffer in self.between]
        return "".join([*scratch, *(f"{k.title()}\n{nest_text(k.statement)}" for k in self.kernels)])

    def _lay_out(self) -> None:
        place = 0
        self._buffers: dict[Buffer, int] = {}
        for buffer in self.buffers:
            self._buffers[buffer] = place
            place += 1 + len(buffer.shape)
        self._between = {buffer: place + n for n, buffer in enumerate(self.between)}
        place += len(self.between)
        self._sizes = {size: place + n for n, size in enumerate(self.sizes)}
        place += len(self.sizes)
        indices = [loop.index for kernel in self.kernels for loop in kernel.loops]
        self._indices = {index: place + n for n, index in enumerate(dict.fromkeys(indices))}
        place += len(self._indices)
        self._layouts: list[Layout] = []
        for kernel in self.kernels:
            mine = used_buffers(kernel.statement)
            layout = Layout(
                {b: p for b, p in self._buffers.items() if b in mine},
                {b: p for b, p in self._between.items() if b in mine}, self._sizes | self._indices,
            )  # fmt: skip
            layout.tags = {tag: place + n for n, tag in enumerate(kernel.axes)}
            place += len(kernel.axes)
            layout.memory = {b: place + n for n, b in enumerate(_in_memory(kernel))}
            place += len(layout.memory)
            self._layouts.append(layout)
        self.n_numbers = place

    def render(self, in_shared: frozenset[Buffer], dense: frozenset[Buffer]) -> str:
        """The text of all kernels.

        `in_shared` are the buffers of blocks for which shared memory has room; in `dense` ones of the call the
        last dimension's elements are neighbours.
        """
        parts = [(KERNELS / f"{part}.cuh").read_text() for part in ("device", "nest")]
        call = f"struct Call {{\n    int64 numbers[{max(1, self.n_numbers)}];\n}};\n"
        kernels = [
            render_kernel(k.name, k.statement, layout, k.axes, k.extents, k.places, in_shared, dense)
            for k, layout in zip(self.kernels, self._layouts)
        ]
        return "\n".join([*parts, call, *kernels])

    # ---- launches ----

    def plan(self, sizes: Sizes, names: Sequence[str], shared_limit: int) -> Plan:
        """The launches for known sizes; `names` are the sizes' keys in order.

        Raises
        ------
        ValueError
            More threads or blocks than a device takes.
        """
        offset = 0
        scratch: list[int] = []
        for buffer in self.between:
            scratch.append(offset)
            count = math.prod(evaluator(extent)(sizes) for extent in buffer.shape)
            offset += _aligned(count * _ITEM[buffer.dtype])
        launches: list[Launch] = []
        rest: list[tuple[int, bool]] = []
        in_shared: list[Buffer] = []
        for kernel in self.kernels:
            steps = {tag: max(evaluator(e)(sizes) for e in kernel.extents[tag]) for tag in kernel.axes}
            rest += [(steps[tag], False) for tag in kernel.axes]
            n_threads = math.prod(n for tag, n in steps.items() if tag.startswith(THREAD))
            n_blocks = math.prod(n for tag, n in steps.items() if not tag.startswith(THREAD))
            self._check_threads(n_threads, {t: e for t, e in kernel.extents.items() if t.startswith(THREAD)})
            if n_blocks > MOST_BLOCKS:
                told = ", ".join(f"{tag} = {n}" for tag, n in steps.items() if not tag.startswith(THREAD))
                raise ValueError(f"{self.name}: a grid has {MOST_BLOCKS} blocks at most, got {n_blocks}: {told}")
            shared = 0
            for buffer in _in_memory(kernel):
                place = kernel.places[buffer]
                n_bytes = _ITEM[buffer.dtype] * evaluator(size_of(place))(sizes)
                n_bytes *= math.prod(steps[tag] for tag in place.copies)
                if place.level == "block" and shared + _aligned(n_bytes, 16) <= shared_limit:
                    in_shared.append(buffer)
                    rest.append((shared, False))
                    shared += _aligned(n_bytes, 16)
                    continue
                rest.append((offset, True))
                offset += _aligned(n_bytes * (n_blocks if place.level == "block" else 1))
            if n_threads and n_blocks:
                loops = tuple((self._indices[e.index], evaluator(e.extent)(sizes)) for e in kernel.loops)
                launches.append(Launch(kernel.name, n_blocks, n_threads, shared, loops))
        return Plan(
            tuple(launches), frozenset(in_shared),
            (*(sizes[name] for name in names), *(0 for _ in self._indices)), tuple(scratch), tuple(rest), offset,
        )  # fmt: skip


def _in_memory(kernel: Kernel) -> list[Buffer]:
    """The buffers that are not their threads' own."""
    return [buffer for buffer, place in kernel.places.items() if place.level != "thread"]


def _aligned(n_bytes: int, to: int = _ALIGNED) -> int:
    return -(-n_bytes // to) * to


def programs_of(
    body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], free: Collection[int], name: str
) -> tuple[Program, Program | None]:
    """The program of a nest, and the one for `WIDE` columns and more if it depends on sizes which is better."""
    program = Program(body, buffers, sizes, free, name)
    known = [constant(width) for width in program.widths]
    if any(size is not None and size >= WIDE for size in known):
        return Program(body, buffers, sizes, free, name, wide=True), None
    return program, Program(body, buffers, sizes, free, name, wide=True) if None in known else None


def text_of(program: Program, wide: Program | None) -> str:
    """The kernels' nests as text."""
    return program.text if wide is None else f"{program.text}// for {WIDE} columns and more:\n{wide.text}"
