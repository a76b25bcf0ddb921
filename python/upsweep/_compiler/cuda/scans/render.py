"""CUDA C++ text of the kernels that scan many columns by a recurrence.

The text consists of types and sizes, `kernels/device.cuh`, `numbers.cuh` and `recurrence.cuh`, the recurrence's
own functions, then `walk.cuh`, `scan_columns.cuh` or `scan_lines.cuh`, and `carries.cuh` and `join_chunks.cuh`
where chunks of time are joined. For lines in one pass it is `carries.cuh`, `runs.cuh`, `tile_state.cuh`,
`tile_parts.cuh`, `extended_tiles.cuh`, and `prefix_warp.cuh` and `scan_persistent.cuh`, or `look_back.cuh` and
`scan_tiles.cuh`. Behind `carries.cuh` are `all_states.cuh` and `extended_steps.cuh`. The functions are

    load_parameters   what does not change during a call
    fetch_fixed       inputs that do not change in time
    fetch, store      one step's inputs and outputs, the thread's own column
    step              the recurrence
    load_states, store_finals   the states before the first and after the last step
    begin_inputs ... store_here   rows of steps, by way of shared memory
    begin_reduction   in one pass: what no steps do to a state
    reduce_step       with a monoid: what steps do to a state
    part_step         with a monoid: the factor and the summand of a step, if it has them
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from upsweep._compiler.cuda.pairs.render import kernel_text
from upsweep._compiler.cuda.scalars import ELEMENTS, SIZES, constants, function, literal
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
from upsweep._compiler.recurrences.associative import is_free

if TYPE_CHECKING:
    from upsweep._compiler.recurrences.associative import Monoid
    from upsweep._compiler.recurrences.recurrence import Recurrence

THREADS = 128  # of a block
JOINERS = (1024, 512, 256)  # threads that join a column's chunks: as many as have room for a carry each
CARRIES_BYTES = 40 * 1024
KINDS = {"affine": 0, "max": 1, "min": 2, "logaddexp": 3, "argmax": 4, "argmin": 4, "integers": 5}
CARRIES = ("carries", "all_states_names", "all_states", "extended_steps")
SHARED_BYTES = 48 * 1024  # of a block's squares: four and more blocks share a processor
# Bytes in flight in each processor that reach the bandwidth of a copy: reading 2.1 TB/s by 132 processors with a
# latency of 700 ns takes 11 KiB; three times as much if a step takes long as well.
IN_FLIGHT = 32 * 1024
MOST_AHEAD, LEAST_AHEAD = 32, 4
# Threads that share the registers of a processor: few sizes, since each is compiled separately.
THREADS_AT_ONCE = (256, 512, 768)
REGISTERS, MOST_REGISTERS = 65536, 255  # of a processor, of a thread
SPARE_REGISTERS = 40  # for all but coming steps
MOST_UNROLLED = 2400  # instructions of the steps of a kernel: the instruction cache holds some 8000
_COSTS = {
    "load": 0, "const": 0, **dict.fromkeys(("exp", "exp2", "div", "sqrt", "rsqrt"), 10),
    **dict.fromkeys(("expm1", "log", "log1p", "log2", "log10"), 20),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "hypot"), 30),
    **dict.fromkeys(("sin", "cos", "tan", "asinh", "acosh", "atanh", "atan2"), 40), "fmod": 60, "pow": 80,
    "integer": 0, "lookup": 10, "integer_lookup": 10, "imul": 4, **dict.fromkeys(("idiv", "imod"), 80),
    **dict.fromkeys(("unsigned_idiv", "unsigned_imod"), 70),
}  # fmt: skip


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
    few_chunks: bool = False  # whether a warp joins the chunks of a column over all states
    tile: TileSizes | None = None
    output_steps: tuple[int, ...] = ()  # constant strides in time of the outputs, as `Stream.step`; or none
    joined: bool = False  # whether chunks begin from states that kernels of other texts have found


def n_matrix(monoid: Monoid | None, n_states: int) -> int:
    """The numbers of the matrix or shift of a chunk; at least one, since C++ has no empty arrays."""
    return n_states * n_states if monoid is not None and monoid.is_affine else 1


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


class ScanKernels:
    """The text of the kernels of a recurrence, and what their launch depends on."""

    def __init__(self, recurrence: Recurrence, request: ScanRequest) -> None:
        self.recurrence, self.request = recurrence, request
        monoid, tile, k = request.monoid, request.tile, recurrence.n_states
        self.moving = [n for n, stream in enumerate(request.inputs) if not stream.fixed]
        self.fixed = [n for n, stream in enumerate(request.inputs) if stream.fixed]
        fixed = [stream.fixed for stream in request.inputs]
        self.steps = [Steps(recurrence.states, recurrence.outputs, fixed)]
        self.extends = monoid is not None and bool(monoid.parts)
        if monoid is not None:
            self.steps.append(Steps(monoid.reduce.states, (), fixed, "reduce_", "reduction_"))
            self.steps.append(Steps(monoid.parts, (), fixed, "part_", "part_"))
        self.run = tile.run if tile else choose_tile(request.inputs) if request.lines else 0
        dtypes = [request.inputs[n].dtype for n in self.moving]
        self.sizes = [SIZES[dtype] for dtype in (*dtypes, *request.outputs)]  # of elements in the squares
        n_inputs = len(dtypes)
        self.squares = lay_out_squares(
            self.sizes[:n_inputs], self.sizes[n_inputs:], self.run, overlaid=tile is not None
        )
        self.warp_bytes = max(self.squares.n_bytes, 16)
        self.joiners = 0  # threads of join_together; 0 without chunks
        kernels = ["walk", "scan_lines" if request.lines else "scan_columns"]
        if tile is not None:
            assert monoid is not None
            self.scanners, self.threads = 32 * tile.warps, tile.threads  # with stages one warp more, the prefix's
            self.shared_bytes = shared_bytes(tile, self.warp_bytes, carry_words(monoid, k))
            own = ["prefix_warp", "scan_persistent"] if tile.stages else ["look_back", "scan_tiles"]
            kernels = [*CARRIES, "runs", "tile_state", "tile_parts", "extended_tiles", *own]
        else:
            warps = THREADS // 32
            while request.lines and warps > 1 and warps * self.warp_bytes > SHARED_BYTES:
                warps //= 2
            self.scanners = self.threads = 32 * warps
            self.shared_bytes = warps * self.warp_bytes if request.lines else 0
            if monoid is not None:
                carry = 8 * (n_matrix(monoid, k) + k)
                self.joiners = next(n for n in JOINERS if n * carry <= CARRIES_BYTES)
                if request.few_chunks:
                    self.joiners = min(self.joiners, 32)
                kernels += [*CARRIES, "join_chunks"]
        self.options = () if request.dtype == "float64" else ("--ftz=true",)
        first = ["device", "numbers", "recurrence"] + ["integers"] * self.recurrence.has_integers
        parts = [
            self._constants(), *map(kernel_text, first), *self._functions(), *map(kernel_text, kernels),
        ]  # fmt: skip
        self.text = "\n".join(parts)

    def _constants(self) -> str:
        request, k = self.request, self.recurrence.n_states
        monoid, tile = request.monoid, request.tile
        numbers = {
            "N_DIMS": request.n_dims, "N_INPUTS": max(len(self.moving), 1), "N_FIXED": max(len(self.fixed), 1),
            "N_OUTPUTS": max(len(request.outputs), 1), "N_STATES": k,
            "N_NUMBERS": max(1, *(steps.n_numbers for steps in self.steps)),
            "PARAMETERS": self.steps[0].n_parameters, "AHEAD": request.ahead, "THREADS": self.scanners,
            "BLOCKS": request.blocks, "TILE": self.run, "WARP_BYTES": self.warp_bytes,
            "CHUNK_DIM": request.chunk_dim, "N_MATRIX": n_matrix(monoid, k),
            "LEVELS": 1 if tile is None else n_powers(tile),
        }  # fmt: skip
        flags = {"REDUCES": request.reduces, "JOINED": monoid is not None or request.joined}
        if monoid is not None:
            numbers |= {
                "AFFINE": 0, "MAXIMUM": 1, "MINIMUM": 2, "WINNER": 4, "INTEGERS": 5, "KIND": KINDS[monoid.kind],
                "DECIDES": monoid.key_state, "JOINERS": self.joiners, "N_PARTS": max(len(monoid.parts), 1),
                "PART_PARAMETERS": self.steps[2].n_parameters,
            }  # fmt: skip
            can_drop = any(node.op == "where" for node in order(*monoid.reduce.states)) or any(
                map(is_free, self.recurrence.states)
            )
            flags |= {
                "VARIES": monoid.varies, "MOST_WINS": monoid.kind == "argmax", "KEEPS_TIES": monoid.keeps_ties,
                "CAN_DROP": can_drop, "EXTENDS": self.extends,
            }  # fmt: skip
            if tile is not None:
                numbers |= {
                    "N_REDUCED": len(monoid.start), "REDUCTION_PARAMETERS": self.steps[1].n_parameters,
                    "TILE_LEVEL": tile.level, "GROUP_BITS": tile.group_bits, "GROUP": 1 << tile.group_bits,
                    "STAGES": tile.stages, "EARLY": tile.early, "LANE_TILES": tile.lane_tiles,
                }  # fmt: skip
        lines = [
            f"typedef {ELEMENTS[request.dtype]} real;",
            "struct float16;",
            "struct bfloat16;",
            *constants({**numbers, **flags}),
        ]
        return "\n".join(lines) + "\n"

    def _functions(self) -> Iterator[str]:
        request = self.request
        for name, which in (("Inputs", self.moving), ("Fixed", self.fixed)):
            members = "".join(f"    {ELEMENTS[request.inputs[n].dtype]} x{n};\n" for n in which)
            yield f"struct {name} {{\n{members}}};\n"
        for steps in self.steps:
            yield steps.load_parameters()
            yield steps.step()
        if self.request.tile is not None and self.request.monoid is not None:
            start = enumerate(self.request.monoid.start)
            yield function(
                "void begin_reduction(real* numbers)", [f"numbers[{n}] = {literal(x)};" for n, x in start]
            )
        inputs = [
            _Array(place, n, ELEMENTS[request.inputs[n].dtype], request.inputs[n].step, self._shared(place))
            for place, n in enumerate(self.moving)
        ]
        integer_states, integer_outputs = self.recurrence.integer_states, self.recurrence.integer_outputs
        output_steps = request.output_steps or (0,) * len(request.outputs)
        outputs = [
            _Array(place, place, _written(dtype), step, self._shared(len(inputs) + place), integer_outputs[place])
            for place, (dtype, step) in enumerate(zip(request.outputs, output_steps))
        ]
        yield _for_each(
            "void fetch(const Call& call, Walk& walk, Inputs& x)", inputs,
            "x.x{n} = fetch_element<{kind}>(walk.inputs[{place}]);",
            "walk.inputs[{place}] += call.inputs[{place}].time_stride;", "forget_origin(walk.inputs[{place}]);",
        )  # fmt: skip
        yield _for_each(
            "void store(const Call& call, Walk& walk, const real* out)", outputs,
            "store_element(walk.outputs[{place}], {narrow}(out[{place}]));",
            "walk.outputs[{place}] += call.outputs[{place}].time_stride;", "forget_origin(walk.outputs[{place}]);",
        )  # fmt: skip
        yield _for_each(
            "void fetch_fixed(const Call& call, const Place& place, Fixed& x)",
            [_Array(place, n, ELEMENTS[request.inputs[n].dtype]) for place, n in enumerate(self.fixed)],
            "x.x{n} = fetch_element<{kind}>(find_address(call.fixed[{place}], place));",
        )
        read = "{2}number(fetch_element<{1}>(find_address(call.states[{0}], place)))".format
        kinds = ["integer_" if flag else "" for flag in integer_states]
        lines = [
            f"state[{s}] = {f'real(call.initial[{s}])' if dtype is None else read(s, ELEMENTS[dtype], kinds[s])};"
            for s, dtype in enumerate(request.initial)
        ]
        yield function("void load_states(const Call& call, const Place& place, real* state)", lines)
        yield _for_each(
            "void store_finals(const Call& call, const Place& place, const real* state)",
            [
                _Array(s, s, _written(dtype), is_integer=integer_states[s])
                for s, dtype in enumerate(request.finals)
                if dtype is not None
            ],
            "store_element(find_address(call.finals[{place}], place), {narrow}(state[{place}]));",
        )
        if request.lines:
            yield from self._rows(inputs, outputs)

    def _shared(self, place: int) -> str:
        """The address of a lane's element in the square of a stream."""
        squares, size = self.squares, self.sizes[place]
        return f"shared + {squares.offsets[place]} + row * {squares.pitches[place]} + t * {size}"

    def _rows(self, inputs: list[_Array], outputs: list[_Array]) -> Iterator[str]:
        """Between memory, where the steps of a column are neighbours, and squares in shared memory."""
        for which, arrays in (("inputs", inputs), ("outputs", outputs)):
            begin, advance = list[str](), list[str]()
            for array in arrays:
                address, of_call = f"at.{which}[{array.place}]", f"call.{which}[{array.place}]"
                if array.step:
                    begin.append(f"{address} += (row * {self.run} + t) * {array.step};")
                    advance.append(f"{address} += rows * {self.run * array.step};")
                else:
                    row_stride = f"{of_call}.strides[N_DIMS - 1]"
                    begin.append(f"{address} += row * {row_stride} + t * {of_call}.time_stride;")
                    advance += [f"{address} += rows * {row_stride};", f"forget_origin({address});"]
            yield function(f"void begin_{which}(const Call& call, Walk& at, long long row, long long t)", begin)
            yield function(f"void next_{which}(const Call& call, Walk& at, long long rows)", advance)
        to_shared = ("put_inputs(char* shared, int row, int t, const Inputs& x)", "{element} = x.x{n};")
        if self.request.tile is not None:
            head = "copy_here(const Walk& at, char* shared, int row, int t)"
            to_shared = (head, "copy_element<{kind}>({shared}, at.inputs[{place}]);")
        for head, line in (
            ("fetch_here(const Walk& at, Inputs& x)", "x.x{n} = fetch_element<{kind}>(at.inputs[{place}]);"),
            to_shared,
            ("get_inputs(const char* shared, int row, int t, Inputs& x)", "x.x{n} = {const_element};"),
        ):
            yield _for_each(f"void {head}", inputs, line)
        yield _for_each(
            "void put_outputs(char* shared, int row, int t, const real* out)", outputs,
            "{element} = {narrow}(out[{place}]);",
        )  # fmt: skip
        yield _for_each(
            "void store_here(const Walk& at, const char* shared, int row, int t)", outputs,
            "store_element(at.outputs[{place}], {const_element});",
        )  # fmt: skip


class _Array(NamedTuple):
    """An array in the text: its place among those of its kind, its number in `Inputs` or `Fixed`, its C++ type."""

    place: int
    n: int
    kind: str
    step: int = 0  # as in `Stream`
    shared: str = ""  # the address of an element in shared memory
    is_integer: bool = False  # whether the number that is written is an integer

    @property
    def narrow(self) -> str:
        """The function from a number to an element."""
        return f"narrow_integer<{self.kind}>" if self.is_integer else f"Stored<{self.kind}>::narrow"


def _for_each(head: str, arrays: list[_Array], *lines: str) -> str:
    """A function with these lines for each array."""
    texts = []
    for array in arrays:
        element = f"*reinterpret_cast<{array.kind}*>({array.shared})"
        const_element = element.replace("<", "<const ", 1)
        names = {"element": element, "const_element": const_element, "narrow": array.narrow, **array._asdict()}
        texts += [line.format(**names) for line in lines]
    return function(head, texts)


def _written(dtype: str) -> str:
    return "boolean" if dtype == "bool" else ELEMENTS[dtype]
