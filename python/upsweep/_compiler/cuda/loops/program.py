"""A loop nest as the kernels of a CUDA device: the pipeline of passes, and the text that NVRTC compiles.

`te.cuda_function` makes a `Program` of a lowered schedule; `_backends.cuda.loops` compiles `Program.render`
and launches what `Program.plan` says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from upsweep._compiler.cuda.loops.barriers import BlocksConflict, check_blocks, fused, with_barriers
from upsweep._compiler.cuda.loops.binding import bind, least_threads, tag_extents
from upsweep._compiler.cuda.loops.keep_states import keep_states
from upsweep._compiler.cuda.loops.kernel import Kernel
from upsweep._compiler.cuda.loops.launch_plan import Plan, shared_offsets
from upsweep._compiler.cuda.loops.memory_scopes import Scope, memory_scopes
from upsweep._compiler.cuda.loops.prefetch import prefetch
from upsweep._compiler.cuda.loops.product_tiles import product_of
from upsweep._compiler.cuda.loops.render import render_kernel
from upsweep._compiler.cuda.loops.resident_weights import keep_weights
from upsweep._compiler.cuda.loops.scan_form import ScanForm
from upsweep._compiler.cuda.loops.split_kernels import Part, split_nest, split_part, with_memory
from upsweep._compiler.cuda.loops.tile_rows import choose_rows, tile_rows
from upsweep._compiler.loops.expressions import ITEM_BYTES, Axis, Expr, constant_of
from upsweep._compiler.loops.rewrite import used_buffers
from upsweep._compiler.loops.sizes import Sizes, evaluator
from upsweep._compiler.loops.statements import Allocate, Block, Buffer, Statement, nest_text

_SOURCES = Path(__file__).parents[1] / "kernels"
_ROWS = "blockIdx.x"  # the thread axis of which a block may take several steps
# Columns from which on a launch for each step is faster than one block with barriers.
WIDE = 4096


class Program:
    """The kernels of a nest, `body`, as it is lowered for any target.

    `buffers` are those of the call's arrays, `sizes` all symbolic sizes, `free` the ids of the axes of stages that
    the schedule leaves open; messages call the function `name`. With `wide`, scans whose columns all need each
    other take several blocks, launched step by step, instead of one. ValueError: blocks need each other's values,
    threads do where no barrier can stand, or a block has more threads than a device takes.
    """

    def __init__(
        self, body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], free: Collection[int], name: str,
        wide: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.buffers, self.sizes, self.wide = name, list(buffers), list(sizes), wide
        self.free = free
        self.widths: list[Expr] = []
        allocated, parts = split_nest(body)
        self.kernels: list[Kernel] = []
        while not self.kernels:
            self.between, statements = with_memory(parts, allocated)
            for n, (part, statement) in enumerate(zip(parts, statements)):
                try:
                    self.kernels.append(self._kernel(n, statement, part))
                except BlocksConflict as conflict:
                    finer = split_part(part)
                    if finer is None:  # with only the blocks that the schedule asks for
                        try:
                            self.kernels.append(self._kernel(n, statement, part, use_blocks=False))
                        except BlocksConflict:
                            raise conflict from None
                        continue
                    parts[n : n + 1] = finer
                    self.kernels = []
                    break
            if not parts:
                break
        for buffer in self.between:
            buffer.scope = "global"
        # Written at once, because another program may be made of the same buffers.
        scratch = [nest_text(Allocate(buffer, Block([]))) for buffer in self.between]
        self.text = "".join([*scratch, *(f"{k.title()}\n{nest_text(k.statement)}" for k in self.kernels)])
        self._lay_out()

    def _kernel(self, n: int, statement: Statement, part: Part, use_blocks: bool = True) -> Kernel:
        """All passes for one kernel."""
        product = product_of(statement, self.free)
        if product is not None:
            extents = product.extents()
            threads = {tag: Axis(tag, None, "thread") for tag in extents}
            return Kernel(f"kernel_{n}", statement, threads, extents, {}, part.loops, product=product)
        bound = bind(statement, self.free, part.of_scan, self.wide, use_blocks)
        self.widths += bound.widths
        axes, statement = bound.axes, bound.statement
        if _ROWS in axes and _ROWS not in bound.scheduled:
            n_rows = choose_rows(statement, axes[_ROWS])
            statement = tile_rows(statement, axes[_ROWS], n_rows, axes) if n_rows > 1 else statement
        statement = prefetch(keep_states(statement, axes))
        scopes = memory_scopes(statement, axes)
        kernel = Kernel(f"kernel_{n}", statement, axes, tag_extents(statement), scopes, part.loops)
        check_blocks(kernel, self.name)
        kernel.statement = fused(with_barriers(kernel, self.name))
        keep_weights(kernel)
        for buffer, scope in kernel.scopes.items():
            buffer.scope = scope.text()
        kernel.check_threads(least_threads(kernel.extents), self.name)
        return kernel

    def is_wide(self, sizes: Sizes) -> bool:
        """Whether a scan that one block takes has `WIDE` columns and more."""
        return any(evaluator(width)(sizes) >= WIDE for width in self.widths)

    def blocks_buffers(self, shared_limit: int) -> frozenset[Buffer]:
        """The buffers in shared memory, of `shared_limit` bytes, where sizes that are not constants are small."""

        def n_bytes_of(scope: Scope) -> int:
            return ITEM_BYTES[scope.buffer.dtype] * (scope.count() or 0)

        buffers = (shared_offsets(kernel, n_bytes_of, shared_limit)[0] for kernel in self.kernels)
        return frozenset(buffer for offsets in buffers for buffer in offsets)

    def _lay_out(self) -> None:
        """Assign positions in `Call.numbers`; the last ones are those of each kernel."""
        common: dict[Buffer | Expr, int] = {}
        position = 0
        for buffer in self.buffers:  # the strides follow
            common[buffer] = position
            position += 1 + len(buffer.shape)
        indices = dict.fromkeys(loop.index for kernel in self.kernels for loop in kernel.loops)
        rest: list[Buffer | Expr] = [*self.between, *self.sizes, *indices]
        for each in rest:
            common[each] = position
            position += 1
        for kernel in self.kernels:
            used = used_buffers(kernel.statement)
            kernel.positions.update((k, n) for k, n in common.items() if isinstance(k, Expr) or k in used)
            own: list[str | Buffer] = [*kernel.axes, *kernel.in_memory()]
            for thing in own:
                kernel.positions[thing] = position
                position += 1
        self.n_numbers = position

    def render(self, in_shared: frozenset[Buffer], dense: frozenset[Buffer]) -> str:
        """The text of all kernels.

        `in_shared` are the buffers of blocks for which shared memory has room; in `dense` ones of the call the
        last dimension is contiguous.
        """
        names = ["device", "nest"]
        names += ["product_tiles"] * any(kernel.product is not None for kernel in self.kernels)
        names += ["resident_weights"] * any(kernel.resident_sums for kernel in self.kernels)
        parts = [(_SOURCES / f"{name}.cuh").read_text() for name in names]
        call = f"struct Call {{\n    int64 numbers[{max(1, self.n_numbers)}];\n}};\n"
        arrays = frozenset(self.buffers)
        kernels = [render_kernel(kernel, arrays, in_shared, dense) for kernel in self.kernels]
        return "\n".join([*parts, call, *kernels])

    def plan(self, sizes: Sizes, names: Sequence[str], shared_limit: int) -> Plan:
        """The launches for known sizes; `names` are the sizes' keys in order."""
        return Plan(self.name, self.kernels, self.between, sizes, names, shared_limit)


def programs_of(
    body: Statement, buffers: Sequence[Buffer], sizes: Sequence[Expr], free: Collection[int], name: str
) -> tuple[Program, Program | None]:
    """The program of a nest, and the one for `WIDE` columns and more if sizes decide which is better."""
    program = Program(body, buffers, sizes, free, name)
    known = [constant_of(width) for width in program.widths]
    if any(size is not None and size >= WIDE for size in known):
        return Program(body, buffers, sizes, free, name, wide=True), None
    return program, Program(body, buffers, sizes, free, name, wide=True) if None in known else None


def text_of(program: Program, wide: Program | None, form: ScanForm | None) -> str:
    """The kernels' nests as text."""
    text = program.text if wide is None else f"{program.text}// for {WIDE} columns and more:\n{wide.text}"
    if form is not None:
        text += f"// or by the kernels of scan(update), where they are faster: {form.why}\n"
    return text
