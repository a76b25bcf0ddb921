"""A kernel's statement as CUDA C++.

    extern "C" __global__ void NAME_0(const __grid_constant__ Call call)

`call.numbers` are numbers of 64 bits, the same for all kernels of a nest: of each buffer of the call its
address and strides, of each buffer between kernels its address; then the sizes; then of each kernel the extents
of its thread axes and, of its buffers in shared or global memory, the offset in shared memory or the address.

The grid is one row of blocks, and a block one row of threads; the indices of several axes are computed from it at
the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from upsweep._compiler.cuda.loops.binding import THREAD
from upsweep._compiler.cuda.loops.conflicts import same_extents
from upsweep._compiler.cuda.loops.expressions import TYPES, expression
from upsweep._compiler.cuda.loops.kernel import CHUNK, Kernel, ResidentSum
from upsweep._compiler.cuda.loops.memory_scopes import Scope
from upsweep._compiler.cuda.loops.product_tiles import COLUMN_TILES, PRODUCTS, ROW_TILES, TiledProduct, count_of
from upsweep._compiler.loops.expressions import Expr, constant_of, contains
from upsweep._compiler.loops.linear import linear
from upsweep._compiler.loops.reductions import initialised_sum, innermost_store, paired_steps
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
    loops_in,
    stored_buffers,
)

# Unrolling of a sum's loop, whose loads are in flight together, and of loops over axes of sums of several rows.
_UNROLLED_SUMS, _UNROLLED_ROWS = 16, 8


class _Names:
    """C++ identifiers, one for each object."""

    def __init__(self) -> None:
        self.known: dict[object, str] = {}

    def of(self, thing: object, hint: str) -> str:
        if thing not in self.known:
            plain = re.sub(r"[^0-9A-Za-z]+", "_", hint).strip("_")
            self.known[thing] = f"{plain if plain[:1].isalpha() else f'v{plain}'}_{len(self.known)}"
        return self.known[thing]


class _Writer:
    """One kernel while it is written."""

    def __init__(
        self, kernel: Kernel, arrays: frozenset[Buffer], in_shared: frozenset[Buffer], dense: frozenset[Buffer]
    ) -> None:
        self.arrays, self.positions, self.axes, self.extents, self.scopes = (
            arrays, kernel.positions, kernel.axes, kernel.extents, kernel.scopes,
        )  # fmt: skip
        self.in_shared, self.dense, self.written = in_shared, dense, stored_buffers(kernel.statement)
        self.names = _Names()
        self.lines: list[str] = []
        self.indent = 1
        self.running: dict[tuple[Buffer, tuple[str, ...]], str] = {}  # elements that a sum has in a register
        self.resident_sums = {each.loop: each for each in kernel.resident_sums}

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    @contextmanager
    def braces(self, header: str | None, after: str = "") -> Iterator[None]:
        """Put what is written inside into braces after a header, which may be empty; None: no braces."""
        if header is None:
            yield
            return
        self.put(f"{header} {{".lstrip())
        self.indent += 1
        yield
        self.indent -= 1
        self.put(f"}}{after}")

    def number(self, thing: Buffer | Expr | str, after: int = 0) -> str:
        return f"call.numbers[{self.positions[thing] + after}]"

    # ---- expressions ----

    def value(self, expr: Expr) -> str:
        return expression(expr, self.atom)

    def atom(self, expr: Expr) -> str:
        if expr.op in ("axis", "var"):
            return self.names.of(expr, str(expr.static[0]))
        buffer = expr.static[0]
        running = self.running.get((buffer, tuple(map(self.value, expr.args))))
        if running is not None:
            return running
        element = self.element(buffer, expr.args)
        if buffer not in self.scopes and buffer not in self.written and buffer.dtype != "bool":
            return f"fetch({element})"
        return element

    def element(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        name = self.names.of(buffer, buffer.name)
        scope = self.scopes.get(buffer)
        if buffer in self.arrays:
            terms = [f"({self.value(index)}) * {name}_stride{d}" for d, index in enumerate(indices)]
            return f"{name}[{' + '.join(terms) or '0'}]"
        extents: tuple[Expr, ...] = buffer.shape
        if scope is not None:
            indices, extents = scope.local(indices, self.axes), scope.extents()
        offset = "0"
        for index, extent in zip(indices, extents):
            if constant_of(extent) != 1:
                value = self.value(index)
                offset = value if offset == "0" else f"({offset}) * {self.value(extent)} + {value}"
        return f"{name}[{offset}]"

    # ---- the beginning ----

    def begin(self) -> None:
        """Sizes, thread indices and pointers as variables."""
        for size in (each for each in self.positions if isinstance(each, Expr)):
            self.put(f"const int64 {self.names.of(size, size.static[0])} = {self.number(size)};")
        for kind in ("blockIdx", THREAD):
            tags = [tag for tag in self.axes if tag.startswith(THREAD) == (kind == THREAD)]
            if tags:
                self.put(f"int64 {kind}_left = {kind}.x;")
                self.unpack(f"{kind}_left", [(self.axes[tag], self.extent_of(tag)) for tag in tags])
        for buffer in (each for each in self.positions if isinstance(each, Buffer) and each not in self.scopes):
            self.argument(buffer)
        for buffer, scope in self.scopes.items():
            self.memory(buffer, scope)
        for each in self.resident_sums.values():
            self.keep_weights(each)

    def extent_of(self, tag: str) -> str:
        extents = self.extents[tag]
        size = constant_of(extents[0])
        return str(size) if len(extents) == 1 and size is not None else self.number(tag)

    def argument(self, buffer: Buffer) -> None:
        name, kind = self.names.of(buffer, buffer.name), TYPES[buffer.dtype]
        kind = kind if buffer in self.written else f"const {kind}"
        self.put(f"{kind}* __restrict__ const {name} = reinterpret_cast<{kind}*>({self.number(buffer)});")
        if buffer in self.arrays:
            for d in range(len(buffer.shape)):
                is_one = buffer in self.dense and d == len(buffer.shape) - 1
                self.put(f"const int64 {name}_stride{d} = {1 if is_one else self.number(buffer, 1 + d)};")

    def memory(self, buffer: Buffer, scope: Scope) -> None:
        name, kind = self.names.of(buffer, buffer.name), TYPES[buffer.dtype]
        if scope.level == "thread":
            self.put(f"{kind} {name}[{max(1, scope.count() or 1)}];")
            return
        address = self.number(buffer)
        is_shared = scope.level == "block" and buffer in self.in_shared
        base = f"reinterpret_cast<{kind}*>({'shared_memory() + ' if is_shared else ''}{address})"
        slot = "blockIdx.x" if scope.level == "block" and not (is_shared or scope.is_alike) else ""
        for tag in scope.copies:
            step = self.atom(self.axes[tag])
            slot = f"(({slot}) * {self.extent_of(tag)} + {step})" if slot else step
        size = self.value(scope.size())
        self.put(f"{kind}* const {name} = {base}{f' + ({slot}) * ({size})' if slot else ''};")

    # ---- products ----

    def unpack(self, left: str, axes: Sequence[tuple[Expr, str]]) -> None:
        """The steps of nested loops, from the innermost, as variables; `left` has the index over all of them."""
        for n, (axis, extent) in enumerate(axes):
            is_last = n == len(axes) - 1
            self.put(f"const int64 {self.atom(axis)} = {left if is_last else f'{left} % {extent}'};")
            if not is_last:
                self.put(f"{left} /= {extent};")

    def unpack_loops(self, index: str, loops: Sequence[For]) -> None:
        self.put(f"int64 {index}_left = {index};")
        self.unpack(f"{index}_left", [(loop.axis, self.value(loop.extent)) for loop in reversed(loops)])

    def product(self, product: TiledProduct) -> None:
        """A tile of a product of matrices, by kernels/product_tiles.cuh."""
        kind, term = TYPES[product.store.buffer.dtype], self.atom(product.terms.axis)
        for name, loops in (("n_rows", product.rows), ("n_columns", product.columns)):
            self.put(f"const int64 {name} = {self.value(count_of(loops))};")
        if product.products:
            self.unpack_loops(self.atom(self.axes[PRODUCTS]), product.products)
        with self.braces(f"const auto left = [&](int64 row, int64 {term}) -> {kind}", ";"):
            self.unpack_loops("row", product.rows)
            self.put(f"return {self.value(product.left)};")
        with self.braces(f"const auto right = [&](int64 {term}, int64 column) -> {kind}", ";"):
            self.unpack_loops("column", product.columns)
            self.put(f"return {self.value(product.right)};")
        with self.braces(f"const auto put = [&](int64 row, int64 column, const Four<{kind}>& four)", ";"):
            self.unpack_loops("row", product.rows)
            element = self.element(product.store.buffer, product.store.indices)
            if self.stores_fours(product):
                self.unpack_loops("column", product.columns)
                self.put(f"*reinterpret_cast<Four<{kind}>*>(&{element}) = four;")
            else:
                self.put("#pragma unroll")
                with self.braces("for (int n = 0; n < 4; ++n, ++column)"):
                    self.put("if (column >= n_columns) break;")
                    self.unpack_loops("column", product.columns)
                    self.put(f"{element} = four.of[n];")
        first_row, first_column = (
            f"{self.atom(self.axes[tag])} * {product.side}" for tag in (ROW_TILES, COLUMN_TILES)
        )
        n_terms = self.value(product.terms.extent)
        self.put(
            f"multiply_tile<{kind}>({first_row}, {first_column}, n_rows, n_columns, {n_terms}, left, right, put);"
        )

    def stores_fours(self, product: TiledProduct) -> bool:
        """Whether four columns from a multiple of four on are sixteen aligned bytes of the result, or more."""
        buffer, last = product.store.buffer, product.columns[-1]
        sizes = [constant_of(extent) or 1 for extent in (last.extent, buffer.shape[-1])]
        is_last = product.store.indices[-1] is last.axis
        return is_last and buffer not in self.arrays and not any(size % 4 for size in sizes)

    def keep_weights(self, resident: ResidentSum) -> None:
        """Load the weights of a sum; `right` is one, of a thread and a term."""
        kind, name = TYPES[resident.store.buffer.dtype], self.names.of(resident, "weights")
        term = self.atom(resident.loop.axis)
        with self.braces(f"const auto {name}_right = [&](int64 thread, int64 {term}) -> {kind}", ";"):
            self.unpack("thread", [(self.axes[tag], self.extent_of(tag)) for tag in resident.threads])
            self.put(f"return {self.value(resident.right)};")
        self.put(f"Four<{kind}> {name}[{max(1, 4 * resident.in_registers)}];")
        counts, places = self.places_of(resident)
        self.put(f"keep_weights<{counts}, {kind}>({places}, {name}_right);")

    def places_of(self, resident: ResidentSum) -> tuple[str, str]:
        """The numbers of chunks in registers, shared and global memory and of threads; the three addresses."""
        kind = TYPES[resident.store.buffer.dtype]
        groups: list[list[Buffer]] = [[], []]
        for chunk in resident.chunks:
            groups[chunk not in self.in_shared].append(chunk)
        firsts = [
            f"reinterpret_cast<Four<{kind}>*>({self.names.of(group[0], '')})"
            if group
            else f"(Four<{kind}>*)nullptr"
            for group in groups
        ]
        counts = f"{resident.in_registers}, {len(groups[0])}, {len(groups[1])}, {resident.n_threads}"
        return counts, ", ".join([self.names.of(resident, "weights"), *firsts])

    def multiply_rows(self, resident: ResidentSum) -> str:
        """The products of all whole chunks of terms in an array, whose name is returned."""
        kind, name = TYPES[resident.store.buffer.dtype], self.names.of(resident, "weights")
        term, row = (
            self.atom(resident.loop.axis),
            "row" if resident.rows is None else self.atom(resident.rows.axis),
        )
        self.put(f"{kind} {name}_sums[{resident.n_rows}] = {{}};")
        with self.braces(f"const auto {name}_left = [&](int64 {row}, int64 {term}) -> Four<{kind}>", ";"):
            if self.reads_fours(resident):
                first = self.element(resident.left.static[0], resident.left.args)
                self.put(f"return *reinterpret_cast<const Four<{kind}>*>(&{first});")
            else:
                with self.braces(f"const auto one = [&](int64 {term}) -> {kind}", ";"):
                    self.put(f"return {self.value(resident.left)};")
                self.put(f"return {{{{one({term}), one({term} + 1), one({term} + 2), one({term} + 3)}}}};")
        counts, places = self.places_of(resident)
        self.put(f"add_products<{counts}>({name}_sums, {places}, {name}_left);")
        return f"{name}_sums"

    def reads_fours(self, resident: ResidentSum) -> bool:
        """Whether four terms from a multiple of four on are sixteen aligned bytes of a block's memory, or more."""
        scope = self.scopes.get(resident.left.static[0]) if resident.left.op == "load" else None
        if scope is None or scope.level != "block":
            return False
        *others, last = scope.local(resident.left.args, self.axes)
        rest = linear(last).without(resident.loop.axis)
        is_last = not any(contains(each, [resident.loop.axis]) for each in others)
        is_term = is_last and linear(last).coefficient(resident.loop.axis) == 1
        return is_term and rest.is_multiple_of(4) and (constant_of(scope.extents()[-1]) or 1) % 4 == 0

    # ---- statements ----

    def write(self, statement: Statement, around: frozenset[str], alone: frozenset[str]) -> None:
        """A statement inside loops of some thread axes; `alone` are those of which only the first step runs."""
        if isinstance(statement, Barrier):
            self.put("__syncthreads();")
            return
        accumulation = initialised_sum(statement)
        if isinstance(statement, Block) and accumulation is None:
            for step, loop in paired_steps(statement):
                self.write(step if loop is None else Block([step, loop]), around, alone)
            return
        absent = self.absent_axes(statement if accumulation is None else accumulation[0], around, alone)
        firsts = " && ".join(f"{self.atom(self.axes[tag])} == 0" for tag in self.axes if tag in absent)
        with self.braces(f"if ({firsts})" if firsts else None):
            if accumulation is None:
                self.inner(statement, around, alone | absent)
            else:
                self.sum_in_register(*accumulation)

    def absent_axes(self, statement: Statement, around: frozenset[str], alone: frozenset[str]) -> frozenset[str]:
        """The thread axes that no loop in or around a statement has, if it contains no barrier.

        Some of its stores may have an axis that others have not; it is absent from those only, one by one.
        """
        if any(isinstance(each, Barrier) for each in all_statements(statement)):
            return frozenset()
        return frozenset(self.axes) - {loop.tag for loop in loops_in(statement)} - around - alone

    def inner(self, statement: Statement, around: frozenset[str], alone: frozenset[str]) -> None:
        if isinstance(statement, (Produce, Allocate)):
            self.write(statement.body, around, alone)
        elif isinstance(statement, If):
            with self.braces(f"if ({self.value(statement.condition)})"):
                self.write(statement.body, around, alone)
        elif isinstance(statement, Store):
            value = self.value(statement.value)
            self.put(f"{self.element(statement.buffer, statement.indices)} = {value};")
        elif isinstance(statement, For):
            self.loop(statement, around, alone)

    def loop(self, loop: For, around: frozenset[str], alone: frozenset[str]) -> None:
        if loop.tag:
            is_whole = same_extents(self.extents[loop.tag], loop.extent)
            name = self.atom(loop.axis)
            with self.braces("" if is_whole else f"if ({name} < {self.value(loop.extent)})"):
                self.write(loop.body, around | {loop.tag}, alone)
            return
        first = 0
        if loop in self.resident_sums:
            resident = self.resident_sums[loop]
            self.add_rows(resident, self.multiply_rows(resident))
            first = resident.n_chunks * CHUNK
            if first == constant_of(loop.extent):
                return
        if "unrolled" in loop.marks:
            self.put("#pragma unroll")
        elif loop.axis.kind == "reduce":
            self.put(f"#pragma unroll {_UNROLLED_ROWS}")
        with self.braces(self.header(loop, first)):
            self.write(loop.body, around, alone)

    def add_rows(self, resident: ResidentSum, sums: str) -> None:
        """Add an array of sums to those of the rows."""
        assert resident.rows is not None
        self.put("#pragma unroll")
        with self.braces(self.header(resident.rows)):
            condition = resident.rows.body.condition if isinstance(resident.rows.body, If) else None
            with self.braces(None if condition is None else f"if ({self.value(condition)})"):
                element = self.element(resident.store.buffer, resident.store.indices)
                self.put(f"{element} += {sums}[{self.atom(resident.rows.axis)}];")

    def header(self, loop: For, first: int = 0) -> str:
        name = self.atom(loop.axis)
        return f"for (int64 {name} = {first}; {name} < {self.value(loop.extent)}; ++{name})"

    def sum_in_register(self, start: Store, loop: For) -> None:
        """An initial value and a loop that accumulates: the element is stored once."""
        total = self.names.of(start, f"{start.buffer.name}.total")
        self.put(f"{TYPES[start.buffer.dtype]} {total} = {self.value(start.value)};")
        store = innermost_store(loop)
        element = (store.buffer, tuple(map(self.value, store.indices)))
        self.running[element] = total
        self.accumulate(loop, total)
        del self.running[element]
        self.put(f"{self.element(start.buffer, start.indices)} = {total};")

    def accumulate(self, statement: Statement, total: str) -> None:
        if isinstance(statement, Store):
            self.put(f"{total} = {self.value(statement.value)};")
            return
        assert isinstance(statement, (For, If))
        if isinstance(statement, For):
            first = 0
            if statement in self.resident_sums:
                self.put(f"{total} += {self.multiply_rows(self.resident_sums[statement])}[0];")
                first = self.resident_sums[statement].n_chunks * CHUNK
                if first == constant_of(statement.extent):
                    return
            self.put(f"#pragma unroll {_UNROLLED_SUMS}")
            header = self.header(statement, first)
        else:
            header = f"if ({self.value(statement.condition)})"
        with self.braces(header):
            self.accumulate(statement.body, total)


def render_kernel(
    kernel: Kernel, arrays: frozenset[Buffer], in_shared: frozenset[Buffer], dense: frozenset[Buffer]
) -> str:
    """The text of one kernel; `arrays` are the buffers of the call, those in `dense` with a contiguous last
    dimension.
    """
    writer = _Writer(kernel, arrays, in_shared, dense)
    writer.begin()
    if kernel.product is None:
        writer.write(kernel.statement, frozenset(), frozenset())
    else:
        writer.product(kernel.product)
    bounds = f"__launch_bounds__({kernel.max_threads()}{'' if kernel.product is None else ', 2'})"
    head = f'extern "C" __global__ void {bounds} {kernel.name}(const __grid_constant__ Call call) {{\n'
    return head + "\n".join(writer.lines) + "\n}\n"
