"""CUDA C++ text of the kernels that scan many columns by a recurrence.

The text consists of types and sizes, `kernels/device.cuh`, `numbers.cuh` and `recurrence.cuh`, the recurrence's
own functions, then `walk.cuh`, `scan_columns.cuh` or `scan_lines.cuh`, and `carries.cuh` and `join_chunks.cuh`
where chunks of time are joined. For lines in one pass it is `carries.cuh`, `runs.cuh`, `tile_state.cuh`,
`tile_parts.cuh`, and `prefix_warp.cuh` and `scan_persistent.cuh`, or `look_back.cuh` and `scan_tiles.cuh`. The
functions are

    load_parameters   what does not change during a call
    fetch_fixed       inputs that do not change in time
    fetch, store      one step's inputs and outputs, the thread's own column
    step              the recurrence
    load_states, store_finals   the states before the first and after the last step
    begin_inputs ... store_here   rows of steps, by way of shared memory
    begin_reduction, reduce_step  in one pass: what steps do to a state
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from upsweep._compiler.cuda.pairs.looped import function
from upsweep._compiler.cuda.pairs.render import kernel_text
from upsweep._compiler.cuda.scalars import ELEMENTS, SIZES, literal
from upsweep._compiler.cuda.scans.single_pass import (
    TileSizes,
    carry_words,
    lay_out_squares,
    n_powers,
    shared_bytes,
)
from upsweep._compiler.cuda.scans.steps import Steps
from upsweep._compiler.formulas.nodes import order
from upsweep._compiler.lowering.lower_scalars import lower_step

if TYPE_CHECKING:
    from upsweep._compiler.recurrences.associative import Monoid
    from upsweep._compiler.recurrences.recurrence import Recurrence

THREADS = 128  # of a block
JOINERS = (1024, 512, 256)  # threads that join a column's chunks: as many as have room for a carry each
CARRIES_BYTES = 40 * 1024
KINDS = {"affine": 0, "max": 1, "min": 2, "logaddexp": 3, "argmax": 4, "argmin": 4}
SHARED_BYTES = 48 * 1024  # of a block's squares: four and more blocks share a processor
# Bytes in flight in each processor that reach the bandwidth of a copy: reading 2.1 TB/s by 132 processors with a
# latency of 700 ns takes 11 KiB; three times as much if a step takes long as well.
IN_FLIGHT = 32 * 1024
MOST_AHEAD, LEAST_AHEAD = 32, 4
# Threads that share the registers of a processor: few sizes, since each is compiled separately.
THREADS_AT_ONCE = (256, 512, 768)
REGISTERS, MOST_REGISTERS, SPARE_REGISTERS = (
    65536,
    255,
    40,
)  # of a processor, of a thread, for all but coming steps
MOST_UNROLLED = 2400  # instructions of the steps of a kernel: the instruction cache holds some 8000
_COSTS = {"exp": 10, "log": 20, "sin": 40, "cos": 40, "tanh": 30, "asin": 30, "acos": 30, "atan": 30, "atan2": 40,
          "pow": 80, "div": 10, "sqrt": 10, "rsqrt": 10, "load": 0, "const": 0}  # fmt: skip


class Stream(NamedTuple):
    """An input: its dtype, whether it is the same at each step, and its constant stride in time in bytes, or 0."""

    dtype: str
    fixed: bool = False
    step: int = 0


class ScanRequest(NamedTuple):
    """What the text depends on besides the recurrence, which reads all of its inputs.

    `initial` and `finals` are dtypes of arrays; None for a number, or for a final state that is not returned. If
    `chunk_dim` is not negative, that axis of the columns counts chunks of time: `reduces` computes what they do to
    a state, and `monoid` joins them. With `tile`, lines are scanned in one pass by `monoid`, whose reduction reads
    the inputs and the numbers of the recurrence.
    """

    dtype: str  # of the computation
    inputs: tuple[Stream, ...]
    outputs: tuple[str, ...]
    initial: tuple[str | None, ...]
    finals: tuple[str | None, ...]
    n_dims: int
    lines: bool = False
    ahead: int = 16  # steps whose inputs are prefetched
    blocks: int = 1  # of a processor, at least
    chunk_dim: int = -1
    reduces: bool = False
    monoid: Monoid | None = None
    tile: TileSizes | None = None
    output_steps: tuple[int, ...] = ()  # constant strides in time of the outputs, as `Stream.step`; or none


@dataclass(frozen=True)
class ScanKernels:
    """The text of the kernels, and what their launch depends on."""

    text: str
    threads: int
    shared_bytes: int
    options: tuple[str, ...]
    joiners: int  # threads of join_together; 0 without chunks


def n_matrix(monoid: Monoid | None, n_states: int) -> int:
    """The numbers of the matrix or shift of a chunk; at least one, since C++ has no empty arrays."""
    return n_states * n_states if monoid is not None and monoid.kind == "affine" else 1


@functools.lru_cache(512)
def cost(recurrence: Recurrence) -> int:
    """The approximate number of instructions of a step."""
    program = lower_step(recurrence.states, recurrence.outputs)
    return 4 + sum(_COSTS.get(step.op, 1) for step in program.values if step.level == "j")


def threads_of(columns_of_processor: int) -> int:
    """The threads of a processor that share its registers: a whole number of blocks."""
    return next((n for n in THREADS_AT_ONCE if columns_of_processor <= n), THREADS_AT_ONCE[-1])


def choose_ahead(recurrence: Recurrence, inputs: tuple[Stream, ...], columns_of_processor: int) -> int:
    """How many steps ahead inputs are loaded: enough bytes in flight, few enough for the registers."""
    moving = [SIZES[stream.dtype] for stream in inputs if not stream.fixed]
    words = sum(-(-size // 4) for size in moving)
    of_thread = min(REGISTERS // threads_of(columns_of_processor), MOST_REGISTERS) - SPARE_REGISTERS
    most = min(MOST_UNROLLED // (3 * cost(recurrence)), of_thread // max(2 * words, 1), MOST_AHEAD)
    target = IN_FLIGHT / (max(32, min(columns_of_processor, THREADS_AT_ONCE[-1])) * max(sum(moving), 1))
    ahead = LEAST_AHEAD
    while 3 * ahead < 2 * target and 2 * ahead <= most:
        ahead *= 2
    return ahead if most >= LEAST_AHEAD else 1


def choose_tile(inputs: tuple[Stream, ...]) -> int:
    """How many steps of 32 columns a warp loads at once; a step of a column takes a register or two."""
    registers = sum(-(-SIZES[stream.dtype] // 4) for stream in inputs if not stream.fixed)
    return next((tile for tile in (32, 16) if tile * registers <= 64), 8)


def render_scan(recurrence: Recurrence, request: ScanRequest) -> ScanKernels:
    """Render the kernels of a recurrence."""
    functions = _Functions(recurrence, request)
    kernels = ["walk", "scan_lines" if request.lines else "scan_columns"]
    if request.tile is not None:
        own = ["prefix_warp", "scan_persistent"] if request.tile.stages else ["look_back", "scan_tiles"]
        kernels = ["carries", "runs", "tile_state", "tile_parts", *own]
    elif request.monoid is not None:
        kernels += ["carries", "join_chunks"]
    parts = [
        functions.sizes(), *map(kernel_text, ("device", "numbers", "recurrence")), *functions.texts(),
        *map(kernel_text, kernels),
    ]  # fmt: skip
    options = () if request.dtype == "float64" else ("--ftz=true",)
    shared = functions.warp_bytes * functions.threads // 32 if request.lines else 0
    threads = functions.threads
    if request.tile is not None and request.monoid is not None:
        threads = request.tile.threads
        shared = shared_bytes(request.tile, functions.warp_bytes, carry_words(request.monoid, recurrence.n_states))
    return ScanKernels("\n".join(parts), threads, shared, options, functions.joiners)


class _Functions:
    """Writes the functions of a recurrence, and the constants that the kernels are compiled with."""

    def __init__(self, recurrence: Recurrence, request: ScanRequest) -> None:
        self.recurrence, self.request = recurrence, request
        self.moving = [n for n, stream in enumerate(request.inputs) if not stream.fixed]
        self.fixed = [n for n, stream in enumerate(request.inputs) if stream.fixed]
        fixed = [stream.fixed for stream in request.inputs]
        self.steps = [Steps(recurrence.states, recurrence.outputs, fixed)]
        if request.tile is not None:
            assert request.monoid is not None
            self.steps.append(Steps(request.monoid.reduce.states, (), fixed, "reduce_", "reduction_"))
        carry = 8 * (n_matrix(request.monoid, recurrence.n_states) + recurrence.n_states)
        joins = request.monoid is not None and request.tile is None
        self.joiners = next(n for n in JOINERS if n * carry <= CARRIES_BYTES) if joins else 0
        if request.tile is not None:
            warps, self.tile = request.tile.warps, request.tile.run
        else:
            warps, self.tile = THREADS // 32, choose_tile(request.inputs) if request.lines else 0
        moving, outputs = (
            [SIZES[dtype] for dtype in dtypes]
            for dtypes in ((request.inputs[n].dtype for n in self.moving), request.outputs)
        )
        self.squares = lay_out_squares(moving, outputs, self.tile, overlaid=request.tile is not None)
        while request.tile is None and request.lines and warps > 1 and warps * self.warp_bytes > SHARED_BYTES:
            warps //= 2
        self.threads = 32 * warps

    @property
    def warp_bytes(self) -> int:
        return max(self.squares.n_bytes, 16)

    def sizes(self) -> str:
        request, monoid, k = self.request, self.request.monoid, self.recurrence.n_states
        numbers = {
            "N_DIMS": request.n_dims, "N_INPUTS": max(len(self.moving), 1), "N_FIXED": max(len(self.fixed), 1),
            "N_OUTPUTS": max(len(request.outputs), 1), "N_STATES": k,
            "N_NUMBERS": max(1, *(steps.n_numbers for steps in self.steps)),
            "PARAMETERS": self.steps[0].n_parameters, "AHEAD": request.ahead, "THREADS": self.threads,
            "BLOCKS": request.blocks,
            "TILE": self.tile, "WARP_BYTES": self.warp_bytes, "CHUNK_DIM": request.chunk_dim,
            "N_MATRIX": n_matrix(monoid, k), "LEVELS": 1 if request.tile is None else n_powers(request.tile),
        }  # fmt: skip
        flags = {"REDUCES": request.reduces, "JOINED": monoid is not None}
        if monoid is not None:
            numbers |= {"AFFINE": 0, "MAXIMUM": 1, "MINIMUM": 2, "WINNER": 4, "KIND": KINDS[monoid.kind],
                        "DECIDES": monoid.key_state, "JOINERS": self.joiners}  # fmt: skip
            can_reset = any(node.op == "where" for node in order(*monoid.reduce.states))
            flags |= {"VARIES": monoid.varies, "MOST_WINS": monoid.kind == "argmax", "KEEPS_TIES":
            monoid.keeps_ties,
                      "CAN_DROP": can_reset}  # fmt: skip
        if request.tile is not None:
            numbers |= self._tile_sizes(request.tile)
        lines = [
            f"typedef {ELEMENTS[request.dtype]} real;",
            "struct float16;",
            "struct bfloat16;",
            *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
            *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
        ]
        return "\n".join(lines) + "\n"

    def _tile_sizes(self, tile: TileSizes) -> dict[str, int]:
        assert self.request.monoid is not None
        return {
            "N_REDUCED": len(self.request.monoid.start), "REDUCTION_PARAMETERS": self.steps[1].n_parameters,
            "TILE_LEVEL": tile.level, "GROUP_BITS": tile.group_bits,
            "GROUP": 1 << tile.group_bits, "STAGES": tile.stages, "EARLY": tile.early,
            "LANE_TILES": tile.lane_tiles,
        }  # fmt: skip

    def texts(self) -> Iterator[str]:
        inputs, outputs = self.request.inputs, [_written(dtype) for dtype in self.request.outputs]
        for name, which in (("Inputs", self.moving), ("Fixed", self.fixed)):
            members = "".join(f"    {ELEMENTS[inputs[n].dtype]} x{n};\n" for n in which)
            yield f"struct {name} {{\n{members}}};\n"
        for steps in self.steps:
            yield steps.load_parameters()
            yield steps.step()
        if self.request.tile is not None and self.request.monoid is not None:
            start = enumerate(self.request.monoid.start)
            yield function(
                "void begin_reduction(real* numbers)", [f"numbers[{n}] = {literal(x)};" for n, x in start]
            )
        elements = [(place, n, ELEMENTS[inputs[n].dtype]) for place, n in enumerate(self.moving)]
        yield function(
            "void fetch(const Call& call, Walk& walk, Inputs& x)",
            [line for p, n, e in elements
             for line in (f"x.x{n} = fetch_element<{e}>(walk.inputs[{p}]);", *_moved("walk", "inputs", p))],
        )  # fmt: skip
        yield function(
            "void store(const Call& call, Walk& walk, const real* out)",
            [line for p, e in enumerate(outputs)
             for line in (f"write_element<{e}>(walk.outputs[{p}], out[{p}]);", *_moved("walk", "outputs", p))],
        )  # fmt: skip
        fixed = [(place, n, ELEMENTS[inputs[n].dtype]) for place, n in enumerate(self.fixed)]
        yield function(
            "void fetch_fixed(const Call& call, const Place& place, Fixed& x)",
            [f"x.x{n} = fetch_element<{e}>(find_address(call.fixed[{p}], place));" for p, n, e in fixed],
        )
        yield from self._states()
        if self.request.lines:
            yield from self._rows(elements, outputs)

    def _states(self) -> Iterator[str]:
        read = "number(fetch_element<{1}>(find_address(call.states[{0}], place)))".format
        lines = [
            f"state[{s}] = {f'real(call.initial[{s}])' if dtype is None else read(s, ELEMENTS[dtype])};"
            for s, dtype in enumerate(self.request.initial)
        ]
        yield function("void load_states(const Call& call, const Place& place, real* state)", lines)
        write = "write_element<{1}>(find_address(call.finals[{0}], place), state[{0}]);".format
        yield function(
            "void store_finals(const Call& call, const Place& place, const real* state)",
            [write(s, _written(dtype)) for s, dtype in enumerate(self.request.finals) if dtype is not None],
        )

    def _rows(self, elements: list[tuple[int, int, str]], outputs: list[str]) -> Iterator[str]:
        """Between memory, where the steps of a column are neighbours, and squares in shared memory."""

        def shared(place: int, size: int) -> str:
            return f"shared + {self.squares.offsets[place]} + row * {self.squares.pitches[place]} + t * {size}"

        names = {ELEMENTS[dtype]: SIZES[dtype] for dtype in SIZES} | {"boolean": 1}
        output_steps = self.request.output_steps or (0,) * len(outputs)
        for which, steps in (
            ("inputs", [self.request.inputs[n].step for n in self.moving]), ("outputs", output_steps)
        ):  # fmt: skip
            far = "row * call.{0}[{1}].strides[N_DIMS - 1] + t * call.{0}[{1}].time_stride".format
            known = [
                f"(row * {self.tile} + t) * {step}" if step else far(which, p) for p, step in enumerate(steps)
            ]
            yield function(
                f"void begin_{which}(const Call& call, Walk& at, long long row, long long t)",
                [f"at.{which}[{p}] += {way};" for p, way in enumerate(known)],
            )
            moved = [
                (f"at.{which}[{p}] += rows * {self.tile * step};",) if step
                else _moved("at", which, p, "rows", "strides[N_DIMS - 1]")
                for p, step in enumerate(steps)
            ]  # fmt: skip
            yield function(
                f"void next_{which}(const Call& call, Walk& at, long long rows)",
                [line for lines in moved for line in lines],
            )
        yield function(
            "void fetch_here(const Walk& at, Inputs& x)",
            [f"x.x{n} = fetch_element<{e}>(at.inputs[{p}]);" for p, n, e in elements],
        )
        if self.request.tile is not None:
            yield function(
                "void copy_here(const Walk& at, char* shared, int row, int t)",
                [f"copy_element<{e}>({shared(p, names[e])}, at.inputs[{p}]);" for p, n, e in elements],
            )
        else:
            yield function(
                "void put_inputs(char* shared, int row, int t, const Inputs& x)",
                [f"*reinterpret_cast<{e}*>({shared(p, names[e])}) = x.x{n};" for p, n, e in elements],
            )
        yield function(
            "void get_inputs(const char* shared, int row, int t, Inputs& x)",
            [f"x.x{n} = *reinterpret_cast<const {e}*>({shared(p, names[e])});" for p, n, e in elements],
        )
        first = len(elements)
        yield function(
            "void put_outputs(char* shared, int row, int t, const real* out)",
            [
                f"*reinterpret_cast<{e}*>({shared(first + p, names[e])}) = Stored<{e}>::narrow(out[{p}]);"
                for p, e in enumerate(outputs)
            ],
        )
        take = "store_element(at.outputs[{1}], *reinterpret_cast<const {0}*>({2}));".format
        yield function(
            "void store_here(const Walk& at, const char* shared, int row, int t)",
            [take(e, p, shared(first + p, names[e])) for p, e in enumerate(outputs)],
        )


def _moved(of: str, which: str, place: int, times: str = "", stride: str = "time_stride") -> tuple[str, str]:
    """Lines that advance an address to the next step, or to another row."""
    address = f"{of}.{which}[{place}]"
    by = f"{times} * " if times else ""
    return f"{address} += {by}call.{which}[{place}].{stride};", f"forget_origin({address});"


def _written(dtype: str) -> str:
    return "boolean" if dtype == "bool" else ELEMENTS[dtype]
