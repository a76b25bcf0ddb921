"""A kernel's statement as CUDA C++.

    extern "C" __global__ void NAME_0(const __grid_constant__ Call call)

`call.numbers` are numbers of 64 bits, the same for all kernels of a nest: of each buffer of the call its
address and strides, of each buffer between kernels its address; then the sizes; then of each kernel the extents
of its thread axes and, of its buffers that are not threads' own, the offset in shared memory or the address.

The grid is one row of blocks, and a block one row of threads: the steps of several axes are taken apart at the
start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upsweep._compiler.cuda.loops.accesses import constant, same_extents
from upsweep._compiler.cuda.loops.binding import MAX_THREADS, THREAD
from upsweep._compiler.cuda.loops.expressions import TYPES, expression
from upsweep._compiler.cuda.loops.memory_scopes import Place
from upsweep._compiler.llvm.loops.matmul import accumulated, continues
from upsweep._compiler.loops.expressions import Axis, Expr, binary, const
from upsweep._compiler.loops.statements import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    For,
    If,
    Produce,
    Statement,
    Store,
    all_statements,
)

__all__ = ["Layout", "render_kernel"]

# Loads of a sum that are on their way together, and of sums of several rows.
_UNROLLED_SUMS, _UNROLLED_ROWS = 16, 8


@dataclass
class Layout:
    """Where in `Call.numbers` things are."""

    buffers: dict[Buffer, int]  # the place of an address; strides follow
    shared: dict[Buffer, int]  # of what lies between kernels: no strides follow
    sizes: dict[Expr, int]
    n_numbers: int = 0
    tags: dict[str, int] = field(default_factory=dict)  # of the kernel that is written
    memory: dict[Buffer, int] = field(default_factory=dict)


class _Names:
    """Names that C++ takes, one for each thing."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self.kept: list[object] = []

    def of(self, thing: object, hint: str) -> str:
        if id(thing) not in self.known:
            self.kept.append(thing)
            plain = re.sub(r"[^0-9A-Za-z]+", "_", hint).strip("_")
            self.known[id(thing)] = f"{plain if plain[:1].isalpha() else f'v{plain}'}_{len(self.known)}"
        return self.known[id(thing)]


class _Kernel:
    """One kernel while it is written."""

    def __init__(
        self, layout: Layout, axes: Mapping[str, Axis], extents: Mapping[str, list[Expr]],
        places: Mapping[Buffer, Place], in_shared: frozenset[Buffer], dense: frozenset[Buffer],
        written: set[Buffer],
    ) -> None:  # fmt: skip
        self.layout, self.axes, self.extents, self.places = layout, axes, extents, places
        self.in_shared, self.dense, self.written = in_shared, dense, written
        self.names = _Names()
        self.lines: list[str] = []
        self.indent = 1
        self.running: dict[tuple[int, tuple[str, ...]], str] = {}  # elements that a sum has in a register

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def number(self, place: int) -> str:
        return f"call.numbers[{place}]"

    # ---- expressions ----

    def value(self, expr: Expr) -> str:
        return expression(expr, self.atom)

    def atom(self, expr: Expr) -> str:
        if expr.op == "axis":
            return self.names.of(expr, str(expr.static[0]))
        if expr.op == "var":
            return self.names.of(expr, str(expr.static[0]))
        buffer = expr.static[0]
        running = self.running.get((id(buffer), tuple(map(self.value, expr.args))))
        if running is not None:
            return running
        place = self.element(buffer, expr.args)
        if buffer not in self.places and buffer not in self.written and buffer.dtype != "bool":
            return f"fetch({place})"
        return place

    def element(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        name = self.names.of(buffer, buffer.name)
        place = self.places.get(buffer)
        if place is None and buffer in self.layout.buffers:
            terms = [f"({self.value(index)}) * {name}_stride{d}" for d, index in enumerate(indices)]
            return f"{name}[{' + '.join(terms) or '0'}]"
        extents: tuple[Expr, ...] = buffer.shape
        if place is not None:
            indices, extents = place.local(indices, self.axes), place.extents()
        text = "0"
        for index, extent in zip(indices, extents):
            if constant(extent) == 1:
                continue
            here = self.value(index)
            text = here if text == "0" else f"({text}) * {self.value(extent)} + {here}"
        return f"{name}[{text}]"

    # ---- the beginning ----

    def begin(self, statement: Statement) -> None:
        for size, place in self.layout.sizes.items():
            self.put(f"const int64 {self.names.of(size, size.static[0])} = {self.number(place)};")
        for kind, source in (("blockIdx", "blockIdx.x"), (THREAD, "threadIdx.x")):
            tags = [tag for tag in self.axes if tag.startswith(THREAD) == (kind == THREAD)]
            left = f"{kind}_left"
            if not tags:
                continue
            self.put(f"int64 {left} = {source};")
            for n, tag in enumerate(tags):
                name, extent = self.atom(self.axes[tag]), self.extent_of(tag)
                last = n == len(tags) - 1
                self.put(f"const int64 {name} = {left if last else f'{left} % {extent}'};")
                if not last:
                    self.put(f"{left} /= {extent};")
        for buffer, first in {**self.layout.buffers, **self.layout.shared}.items():
            self.argument(buffer, first)
        for buffer, home in self.places.items():
            self.memory(buffer, home)

    def extent_of(self, tag: str) -> str:
        extents = self.extents[tag]
        size = constant(extents[0])
        return str(size) if len(extents) == 1 and size is not None else self.number(self.layout.tags[tag])

    def argument(self, buffer: Buffer, first: int) -> None:
        name, kind = self.names.of(buffer, buffer.name), TYPES[buffer.dtype]
        plain = "" if buffer in self.written else "const "
        self.put(
            f"{plain}{kind}* __restrict__ const {name} = reinterpret_cast<{plain}{kind}*>({self.number(first)});"
        )
        if buffer in self.layout.buffers:
            for d in range(len(buffer.shape)):
                is_one = buffer in self.dense and d == len(buffer.shape) - 1
                self.put(f"const int64 {name}_stride{d} = {1 if is_one else self.number(first + 1 + d)};")

    def memory(self, buffer: Buffer, place: Place) -> None:
        name, kind, count = self.names.of(buffer, buffer.name), TYPES[buffer.dtype], place.count()
        if place.level == "thread":
            self.put(f"{kind} {name}[{max(1, count or 1)}];")
            return
        where = self.number(self.layout.memory[buffer])
        if place.level == "block" and buffer in self.in_shared:
            base = f"reinterpret_cast<{kind}*>(shared_memory() + {where})"
        else:
            base = f"reinterpret_cast<{kind}*>({where})"
        copies = list(place.copies)
        slot = "blockIdx.x" if place.level == "block" and buffer not in self.in_shared else ""
        for tag in copies:
            step = self.atom(self.axes[tag])
            slot = f"(({slot}) * {self.extent_of(tag)} + {step})" if slot else step
        size = self.value(size_of(place))
        self.put(f"{kind}* const {name} = {base}{f' + ({slot}) * ({size})' if slot else ''};")

    # ---- statements ----

    def write(self, statement: Statement, around: frozenset[str], alone: frozenset[str]) -> None:
        """A statement inside loops of some thread axes; `alone` are those whose first step alone is running."""
        if isinstance(statement, Barrier):
            self.put("__syncthreads();")
            return
        if not isinstance(statement, Block):
            alone = self.left_alone(statement, around, alone)
        elif self.sum_in_register(statement, around, alone):
            return
        depth = self.indent
        missing = [tag for tag in self.axes if tag in alone and (id(statement), tag) in self.guarded]
        if missing:
            self.put(f"if ({' && '.join(f'{self.atom(self.axes[tag])} == 0' for tag in missing)}) {{")
            self.indent += 1
        self.inner(statement, around, alone)
        if missing:
            self.indent = depth
            self.put("}")

    guarded: set[tuple[int, str]]

    def left_alone(self, statement: Statement, around: frozenset[str], alone: frozenset[str]) -> frozenset[str]:
        """The thread axes that no loop in or around a statement has, if nothing in it waits for others."""
        inside = list(all_statements(statement))
        if any(isinstance(each, Barrier) for each in inside):
            return alone
        has = {each.tag for each in inside if isinstance(each, For) and each.tag}
        found = frozenset(self.axes) - has - around - alone
        # Some of its stores may have an axis that others have not: those are looked at one by one.
        self.guarded |= {(id(statement), tag) for tag in found}
        return alone | found

    def inner(self, statement: Statement, around: frozenset[str], alone: frozenset[str]) -> None:
        if isinstance(statement, Block):
            self.block(statement, around, alone)
        elif isinstance(statement, (Produce, Allocate)):
            self.write(statement.body, around, alone)
        elif isinstance(statement, If):
            self.put(f"if ({self.value(statement.condition)}) {{")
            self.nested(statement.body, around, alone)
        elif isinstance(statement, Store):
            value = self.value(statement.value)
            self.put(f"{self.element(statement.buffer, statement.indices)} = {value};")
        elif isinstance(statement, For):
            self.loop(statement, around, alone)

    def nested(self, body: Statement, around: frozenset[str], alone: frozenset[str]) -> None:
        self.indent += 1
        self.write(body, around, alone)
        self.indent -= 1
        self.put("}")

    def loop(self, loop: For, around: frozenset[str], alone: frozenset[str]) -> None:
        name = self.atom(loop.axis)
        if loop.tag:
            inside = around | {loop.tag}
            if same_extents(self.extents[loop.tag], loop.extent):
                self.put("{")
            else:
                self.put(f"if ({name} < {self.value(loop.extent)}) {{")
            self.nested(loop.body, inside, alone)
            return
        if "unrolled" in loop.marks:
            self.put("#pragma unroll")
        elif loop.axis.kind == "reduce":
            self.put(f"#pragma unroll {_UNROLLED_ROWS}")
        self.put(self.header(loop))
        self.nested(loop.body, around, alone)

    def header(self, loop: For) -> str:
        name = self.atom(loop.axis)
        return f"for (int64 {name} = 0; {name} < {self.value(loop.extent)}; ++{name}) {{"

    def block(self, block: Block, around: frozenset[str], alone: frozenset[str]) -> None:
        steps = list(block.steps)
        while steps:
            step = steps.pop(0)
            following = steps[0] if steps else None
            if isinstance(step, Store) and isinstance(following, For) and continues(step, following):
                steps.pop(0)
                self.write(Block([step, following]), around, alone)
            else:
                self.write(step, around, alone)

    def sum_in_register(self, block: Block, around: frozenset[str], alone: frozenset[str]) -> bool:
        """A first value and a loop that takes others into it: the element is written once."""
        if len(block.steps) != 2:
            return False
        start, loop = block.steps
        if not isinstance(start, Store) or not isinstance(loop, For) or not continues(start, loop):
            return False
        store = accumulated(loop)
        assert store is not None
        alone = self.left_alone(start, around, alone)
        missing = [tag for tag in self.axes if (id(start), tag) in self.guarded]
        if missing:
            self.put(f"if ({' && '.join(f'{self.atom(self.axes[tag])} == 0' for tag in missing)}) {{")
            self.indent += 1
        total = self.names.of(start, f"{start.buffer.name}.total")
        self.put(f"{TYPES[start.buffer.dtype]} {total} = {self.value(start.value)};")
        place = (id(store.buffer), tuple(map(self.value, store.indices)))
        self.running[place] = total
        self.accumulate(loop, total)
        del self.running[place]
        self.put(f"{self.element(start.buffer, start.indices)} = {total};")
        if missing:
            self.indent -= 1
            self.put("}")
        return True

    def accumulate(self, statement: Statement, total: str) -> None:
        if isinstance(statement, Store):
            self.put(f"{total} = {self.value(statement.value)};")
            return
        if isinstance(statement, For):
            self.put(f"#pragma unroll {_UNROLLED_SUMS}")
            self.put(self.header(statement))
        else:
            assert isinstance(statement, If)
            self.put(f"if ({self.value(statement.condition)}) {{")
        self.indent += 1
        self.accumulate(statement.body, total)
        self.indent -= 1
        self.put("}")


def size_of(place: Place) -> Expr:
    """How many elements a thread's, a block's or the grid's part has."""
    total = const(1, "int64")
    for extent in place.extents():
        total = binary("mul", total, extent)
    return total


def render_kernel(
    name: str, statement: Statement, layout: Layout, axes: Mapping[str, Axis], extents: Mapping[str, list[Expr]],
    places: Mapping[Buffer, Place], in_shared: frozenset[Buffer], dense: frozenset[Buffer],
) -> str:  # fmt: skip
    """The text of one kernel; in `dense` buffers the last dimension's elements are neighbours."""
    written = {each.buffer for each in all_statements(statement) if isinstance(each, Store)}
    kernel = _Kernel(layout, axes, extents, places, in_shared, dense, written)
    kernel.guarded = set()
    kernel.begin(statement)
    kernel.write(statement, frozenset(), frozenset())
    bounds = f"__launch_bounds__({threads_bound(axes, extents)})"
    head = f'extern "C" __global__ void {bounds} {name}(const __grid_constant__ Call call) {{\n'
    return head + "\n".join(kernel.lines) + "\n}\n"


def threads_bound(axes: Mapping[str, Axis], extents: Mapping[str, list[Expr]]) -> int:
    """The threads that a block has at most: registers have to be enough for so many."""
    total = 1
    for tag in axes:
        if not tag.startswith(THREAD):
            continue
        sizes = [constant(extent) for extent in extents[tag]]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return MAX_THREADS
        total *= max(known)
    return total
