"""Scans by an update on a device: kernels made from a recurrence, kept, and launched on the caller's stream.

Nothing here synchronises, but for the first call of a recurrence, which compiles; a later call can be captured in
a graph. Time is sequential, a thread a column; or lines are scanned in one pass, tile after tile; or time is cut
into chunks, which are columns of their own: one scan finds what each does to a state, a second kernel the states
before them, and one more scan the results. An update that is a recurrence of gates and tokens goes to the kernels
of `linear_recurrence`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._backends.cuda import driver, linear_update
from upsweep._backends.cuda.prepared_launch import Launches
from upsweep._backends.cuda.scan_launch import DeviceArray
from upsweep._backends.cuda.user_scan_layout import Chunks, Layout, cut_time, lay_out
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.scans.render import (
    SIZES,
    THREADS,
    ScanKernels,
    ScanRequest,
    Stream,
    choose_ahead,
    n_matrix,
    render_scan,
    threads_of,
)
from upsweep._compiler.cuda.scans.single_pass import (
    TileSizes,
    carry_words,
    choose_tile_sizes,
    n_powers,
    workspace_bytes,
)
from upsweep._compiler.formulas.nodes import order, substitute
from upsweep._compiler.recurrences.associative import Monoid, matrix_power, matrix_powers
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, input_, lifted
from upsweep._utils.lru_cache import LRUCache

__all__ = ["Plan", "run"]

Allocate = Callable[[int], tuple[int, object]]
State = DeviceArray | float

KEPT = 512  # recurrences' kernels in memory
MOST_BYTES = 4096  # of a kernel's arguments
MOST_BLOCKS = 2**31 - 1  # of a launch
FEW_CHUNKS = 32  # of a column, which one thread joins
ORDINARY = 1e75  # of numbers, as in kernels/look_back.cuh


class Prepared(NamedTuple):
    """A recurrence's kernels on a device."""

    kernels: ScanKernels
    run: Any
    join_alone: Any
    join_together: Any
    structure: type[ctypes.Structure]


class _Reading(NamedTuple):
    """A recurrence whose numbers are lifted, that reads all of its inputs; which of the given ones these are."""

    recurrence: Recurrence
    numbers: tuple[float, ...]
    inputs: tuple[int, ...]


_prepared: LRUCache[Any, Prepared] = LRUCache(KEPT)


@functools.lru_cache(KEPT)
def _reading(recurrence: Recurrence) -> _Reading:
    plain, numbers = lifted(recurrence)
    roots = (*plain.states, *plain.outputs)
    read = sorted({n.static[0] for n in order(*roots) if n.op == "variable" and n.static[1] == "j"})
    places = {input_(n): input_(place) for place, n in enumerate(read)}
    new = tuple(substitute(root, places) for root in roots)
    k = plain.n_states
    return _Reading(Recurrence(new[:k], new[k:], len(read)), numbers, tuple(read))


@functools.lru_cache(KEPT)
def _reading_with(recurrence: Recurrence, form: Monoid) -> tuple[_Reading, Monoid]:
    """The same, and the form with its reduction in terms of these inputs and numbers."""
    k, n = recurrence.n_states, len(recurrence.outputs)
    both = _reading(replace(recurrence, outputs=(*recurrence.outputs, *form.reduce.states)))
    outputs, reduced = both.recurrence.outputs[:n], both.recurrence.outputs[n:]
    plain = replace(both.recurrence, outputs=outputs)
    assert len(plain.states) == k
    reduce = Recurrence(reduced, (), plain.n_inputs)
    start = form.start if form.varies or form.kind != "affine" else form.start[-k:]
    return both._replace(recurrence=plain), Monoid(
        form.kind, reduce, start, form.varies, (), form.decides, form.keeps_ties
    )


def _prepare(recurrence: Recurrence, request: ScanRequest, n_numbers: int, device: int) -> Prepared:
    """The kernels of a recurrence, compiled and loaded by the first call.

    Raises
    ------
    RuntimeError
        There is no driver or no run-time compiler; the message says what to install.
    """
    key = (recurrence, request, device)
    return _prepared.get_or_build(key, lambda: _make(recurrence, request, n_numbers, device))


def _make(recurrence: Recurrence, request: ScanRequest, n_numbers: int, device: int) -> Prepared:
    gpu = driver.device(device)
    kernels = render_scan(recurrence, request)
    structure = _structure(recurrence, request, n_numbers)
    if ctypes.sizeof(structure) > MOST_BYTES:
        n_arrays = len(request.inputs) + len(request.outputs) + 2 * recurrence.n_states
        raise ValueError(f"update: a scan of {n_arrays} inputs, outputs and states is too large for CUDA")
    module = gpu.load(nvrtc.fetch_or_compile(kernels.text, kernels.options, gpu.capability))
    run = module.function("run_scan")
    if kernels.shared_bytes:
        run.use_shared(kernels.shared_bytes)
    alone, together = (
        module.function(name) if kernels.joiners else None for name in ("join_alone", "join_together")
    )
    return Prepared(kernels, run, alone, together, structure)


def _structure(recurrence: Recurrence, request: ScanRequest, n_numbers: int) -> type[ctypes.Structure]:
    """`Call` of kernels/recurrence.cuh."""
    number, place, pointer = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p
    fields = [("data", pointer), ("time_stride", place), ("strides", place * request.n_dims)]
    array: Any = type("ScanArray", (ctypes.Structure,), {"_fields_": fields})
    k, fixed = recurrence.n_states, sum(stream.fixed for stream in request.inputs)
    counts = {
        "inputs": len(request.inputs) - fixed, "fixed": fixed, "outputs": len(request.outputs), "states": k,
        "finals": k,
    }  # fmt: skip
    of_call: list[tuple[str, Any]] = [
        ("n_columns", place), ("n_steps", place), ("chunk", place), ("n_chunks", place),
        ("shape", place * request.n_dims), ("numbers", number * max(n_numbers, 1)), ("initial", number * k),
        ("matrix", number * (n_matrix(request.form, k) * (n_powers(request.tile) if request.tile else 1))),
        ("is_bounded", place), ("reduced", pointer), ("starts", pointer),
        *((name, array * max(count, 1)) for name, count in counts.items()),
    ]  # fmt: skip
    return type("ScanCall", (ctypes.Structure,), {"_fields_": of_call})


class _Scan:
    """The arrays of a scan, and the axes of their columns."""

    def __init__(
        self,
        dtype: str,
        given: Sequence[DeviceArray | None],
        outputs: Sequence[DeviceArray],
        states: Sequence[State],
        finals: Sequence[DeviceArray | None],
        length: int,
        columns: tuple[int, ...],
        device: int,
    ) -> None:
        read = [n for n, array in enumerate(given) if array is not None]
        self.places = {n: k for k, n in enumerate(read)}
        inputs = [array for array in given if array is not None]
        self.dtype, self.inputs, self.outputs, self.states, self.finals = dtype, inputs, outputs, states, finals
        self.length, self.device = length, device
        # Where each of them is among the operands of a call.
        first = [len(given), len(given) + len(outputs), len(given) + len(outputs) + len(states)]
        self.read, (self.of_outputs, self.of_states, self.of_finals) = read, first
        moving = [array for array in (*outputs, *inputs) if array.strides[0] != 0]
        arrays = [array.strides[1:] for array in (*inputs, *outputs)]
        edges = [array.strides for array in (*states, *finals) if isinstance(array, DeviceArray)]
        # The order of the columns is that of the first array that holds them all, outputs before inputs.
        ranked = [
            *range(len(inputs), len(arrays)),
            *range(len(inputs)),
            *range(len(arrays), len(arrays) + len(edges)),
        ]
        whole = next((n for n in ranked if 0 not in (*arrays, *edges)[n]), next(iter(ranked), 0))
        time_stride = moving[0].strides[0] if moving else 0
        self.layout: Layout = lay_out(columns, [*arrays, *edges], time_stride, whole)

    def prepare(
        self, reading: _Reading, *, form: Monoid | None = None, reduces: Recurrence | None = None,
        chunks: Chunks | None = None, initial: Sequence[float] = (), matrix: Sequence[float] = (),
        tile: TileSizes | None = None,
    ) -> Launches:  # fmt: skip
        """The scan of a recurrence, ready to be launched; with `form`, the joining of its chunks before.

        With `tile` lines go past in one pass, and chunks are the runs of a lane.
        """
        is_reduction = reduces is not None
        recurrence, layout = reading.recurrence, self.layout
        strides = iter(layout.strides)
        of_inputs, of_outputs = ([next(strides) for _ in part] for part in (self.inputs, self.outputs))
        of_states = [next(strides) if isinstance(s, DeviceArray) else () for s in self.states]
        of_finals = [() if s is None else next(strides) for s in self.finals]
        cut = _Cut(layout, chunks)
        lines = layout.lines and (chunks is not None or layout.n_columns > 1)
        places = [self.places[n] for n in reading.inputs]
        arrays = [(self.read[place], self.inputs[place], of_inputs[place]) for place in places]
        fixed = [array.strides[0] == 0 for _, array, _ in arrays]
        streams = tuple(
            Stream(array.dtype, flag, _known_step(array) if tile else 0)
            for (_, array, _), flag in zip(arrays, fixed)
        )
        n_processors = driver.device(self.device).n_processors
        of_processor = -(-cut.n_columns // n_processors)
        ahead = 1 if lines else choose_ahead(recurrence, streams, of_processor)
        blocks = tile.blocks if tile else 1 if lines else threads_of(of_processor) // THREADS
        outputs = () if is_reduction else tuple(array.dtype for array in self.outputs)
        nothing = (None,) * recurrence.n_states
        request = ScanRequest(
            self.dtype, streams, outputs,
            nothing if is_reduction else tuple(getattr(state, "dtype", None) for state in self.states),
            nothing if is_reduction else tuple(getattr(final, "dtype", None) for final in self.finals),
            len(cut.shape), lines, ahead, blocks,
            cut.chunk_dim, is_reduction, form, tile, tuple(map(_known_step, self.outputs)) if tile else (),
        )  # fmt: skip
        made = _prepare(recurrence, request, len(reading.numbers), self.device)
        call = made.structure()
        launches = Launches(call)
        call.n_columns, call.n_steps = cut.n_columns, self.length
        call.chunk, call.n_chunks = (chunks.steps, chunks.n) if chunks else (self.length, 1)
        call.shape[:] = cut.shape
        call.numbers[: len(reading.numbers)] = reading.numbers
        call.matrix[: len(matrix)] = matrix
        for field, wanted in (("inputs", False), ("fixed", True)):
            chosen = [of for of, flag in zip(arrays, fixed) if flag is wanted]
            for target, (operand, array, own) in zip(getattr(call, field), chosen):
                launches.read_address(target, operand)
                cut.describe(target, array.strides[0], own)
        if is_reduction:
            call.initial[:] = initial
        else:
            for n, (target, array, own) in enumerate(zip(call.outputs, self.outputs, of_outputs)):
                launches.read_address(target, self.of_outputs + n)
                cut.describe(target, array.strides[0], own)
            for n, (state, own) in enumerate(zip(self.states, of_states)):
                if isinstance(state, DeviceArray):
                    launches.read_address(call.states[n], self.of_states + n)
                    cut.describe(call.states[n], 0, own)
                else:
                    launches.read_number(made.structure.initial.offset // 8 + n, self.of_states + n)
            for n, (target, final, own) in enumerate(zip(call.finals, self.finals, of_finals)):
                if final is not None:
                    launches.read_address(target, self.of_finals + n)
                    cut.describe(target, 0, own)
        if tile is not None:
            n_tiles = -(-self.length // tile.steps)
            call.n_columns, call.chunk, call.n_chunks = layout.n_columns, tile.steps, n_tiles
            call.is_bounded = all(abs(number) < ORDINARY for number in matrix)
            n_blocks = _checked(layout.n_columns * n_tiles)
            if tile.stages:
                launches.add(made.run, min(n_processors, n_blocks), made.kernels.threads, together=True)
            else:
                launches.add(made.run, n_blocks, made.kernels.threads)
            return launches
        if form is not None and chunks is not None:
            launches.add(*self._joining(made, chunks))
        launches.add(made.run, *self._blocks(made, cut, lines, n_processors))
        return launches

    def _joining(self, made: Prepared, chunks: Chunks) -> tuple[Any, int, int]:
        n_columns, threads = self.layout.n_columns, made.kernels.threads
        if chunks.n <= FEW_CHUNKS:
            return made.join_alone, _checked(-(-n_columns // threads)), threads
        return made.join_together, _checked(n_columns), made.kernels.joiners

    def _blocks(self, made: Prepared, cut: _Cut, lines: bool, n_processors: int) -> tuple[int, int]:
        """The blocks of the scan's kernel, and the threads of each."""
        threads = made.kernels.threads
        if lines:
            squares = cut.n_columns // cut.shape[-1] * -(-cut.shape[-1] // 32)
            return _checked(-(-squares // (threads // 32))), threads
        while threads > 32 and cut.n_columns < 2 * threads * n_processors:
            threads //= 2  # so that every processor has a part
        return _checked(-(-cut.n_columns // threads)), threads


def _known_step(array: DeviceArray) -> int:
    """The stride in time, if neighbouring steps are neighbours in memory: code for it has it as a constant."""
    return array.strides[0] if abs(array.strides[0]) == SIZES[array.dtype] else 0


class _Cut:
    """The axes of a layout, with one that counts chunks of time: the innermost of lines, else the outermost."""

    def __init__(self, layout: Layout, chunks: Chunks | None) -> None:
        self.chunks, self.first = chunks, not layout.lines
        shape = layout.shape
        if chunks is not None:
            shape = (chunks.n, *shape) if self.first else (*shape, chunks.n)
        self.shape, self.n_columns = shape, layout.n_columns * (chunks.n if chunks else 1)
        self.chunk_dim = -1 if chunks is None else 0 if self.first else len(shape) - 1

    def describe(self, target: Any, time_stride: int, strides: tuple[int, ...]) -> None:
        target.time_stride = time_stride
        if self.chunks is not None:
            step = self.chunks.steps * time_stride
            strides = (step, *strides) if self.first else (*strides, step)
        target.strides[:] = strides


def _checked(n_blocks: int) -> int:
    if n_blocks > MOST_BLOCKS:
        raise ValueError(f"xs: {n_blocks} blocks of columns are too many for one call")
    return n_blocks


class Plan:
    """A scan by an update, ready to start on any arrays that lie as these do.

    Parameters
    ----------
    recurrence : Recurrence
        What a step does.
    dtype : str
        "float32" or "float64": what is calculated in.
    inputs, outputs : sequence of DeviceArray
        Of shape (length, *columns), in the order of the scan; any strides. Outputs are floating or bool.
        None for an input that the recurrence does not read. What their addresses are does not matter.
    states : sequence of DeviceArray or float
        Before the first step: of shape `columns`, or a number, whichever.
    finals : sequence of DeviceArray or None
        Where the states after the last step go.
    form : Monoid, optional
        What makes time parallel; without it time is sequential.
    """

    def __init__(
        self, recurrence: Recurrence, dtype: str, inputs: Sequence[DeviceArray | None],
        outputs: Sequence[DeviceArray], states: Sequence[State], finals: Sequence[DeviceArray | None],
        length: int, columns: tuple[int, ...], form: Monoid | None, device: int,
    ) -> None:  # fmt: skip
        self._n_bytes, self._n_reduced, self._launches = 0, 0, list[Launches]()
        self._linear = (
            linear_update.prepare(recurrence, inputs, outputs, states, finals, columns, device) if length else None
        )
        if self._linear is not None:
            return
        scan = _Scan(dtype, inputs, outputs, states, finals, length, columns, device)
        if form is not None and self._prepare_tiles(scan, recurrence, form):
            return
        reading = _reading(recurrence)
        chunks = cut_time(length, scan.layout.n_columns) if form is not None else None
        if form is None or chunks is None or chunks.n < 2:
            self._launches.append(scan.prepare(reading))
            return
        reduction = _reading(replace(form.reduce, outputs=()))
        n_bytes = scan.layout.n_columns * chunks.n * SIZES[dtype]
        self._n_reduced = form.reduce.n_states * n_bytes
        self._n_bytes = self._n_reduced + recurrence.n_states * n_bytes
        matrix = () if form.varies else _repeated(form, np.dtype(dtype), chunks.steps)
        self._launches += [
            scan.prepare(reduction, reduces=recurrence, chunks=chunks, initial=form.start),
            scan.prepare(reading, form=_plain(form), chunks=chunks, matrix=matrix),
        ]

    def _prepare_tiles(self, scan: _Scan, recurrence: Recurrence, form: Monoid) -> bool:
        """Prepare one pass, if it is made for such a scan."""
        reading, plain = _reading_with(recurrence, form)
        moving = [scan.inputs[scan.places[n]] for n in reading.inputs]
        sizes = [SIZES[array.dtype] for array in moving if array.strides[0] != 0]
        n_lines, gpu = scan.layout.n_columns, driver.device(scan.device)
        n_processors = gpu.n_processors
        tile = choose_tile_sizes(
            plain, recurrence.n_states, sizes, [SIZES[array.dtype] for array in scan.outputs], n_lines,
            scan.length, n_processors, gpu.shared_bytes,
        )  # fmt: skip
        if tile is None or not scan.layout.lines or scan.length <= tile.steps:
            return False
        n_tiles = -(-scan.length // tile.steps)
        if n_lines * n_tiles > MOST_BLOCKS:
            return False
        chunks = Chunks(tile.run, -(-scan.length // tile.run))
        matrix = () if form.varies else _powers(form, np.dtype(scan.dtype), tile)
        self._launches.append(scan.prepare(reading, form=plain, chunks=chunks, matrix=matrix, tile=tile))
        n_waves = -(-n_lines * n_tiles // min(n_processors, n_lines * n_tiles))
        self._n_bytes = workspace_bytes(
            tile, n_lines, n_tiles, carry_words(plain, recurrence.n_states), recurrence.n_states, n_waves
        )
        self._launches[0].fill(self._n_bytes)
        return True

    def start(self, operands: Sequence[Any], stream: int, allocate: Allocate) -> None:
        """Start it on a stream.

        Parameters
        ----------
        operands : sequence of int, float or None
            The addresses of inputs, outputs, states and finals, in this order; of states that are numbers, these.
        allocate : callable
            As that of `run_scan`.
        """
        if self._linear is not None:
            self._linear.start(operands, stream, allocate)
            return
        reduced, keep = allocate(self._n_bytes) if self._n_bytes else (0, None)
        for launches in self._launches:
            launches.start(operands, (reduced, reduced + self._n_reduced), stream)
        del keep


def run(
    recurrence: Recurrence,
    dtype: str,
    inputs: Sequence[DeviceArray | None],
    outputs: Sequence[DeviceArray],
    states: Sequence[State],
    finals: Sequence[DeviceArray | None],
    length: int,
    columns: tuple[int, ...],
    form: Monoid | None,
    *,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Start a scan by an update: a `Plan` of it, which says what these are, on the arrays themselves."""
    plan = Plan(recurrence, dtype, inputs, outputs, states, finals, length, columns, form, device)
    operands = (*inputs, *outputs, *states, *finals)
    plan.start([each.pointer if isinstance(each, DeviceArray) else each for each in operands], stream, allocate)


@functools.lru_cache(KEPT)
def _plain(form: Monoid) -> Monoid:
    """The form without its numbers, which are no part of the text."""
    reduce = _reading(form.reduce).recurrence
    return Monoid(form.kind, reduce, (), form.varies, (), form.decides, form.keeps_ties)


@functools.lru_cache(KEPT)
def _repeated(form: Monoid, dtype: np.dtype[Any], n_steps: int) -> tuple[float, ...]:
    """What so many steps of the same do: the matrix to that power, or so many times the shift."""
    if form.kind in ("argmax", "argmin"):
        return ()
    numbers = np.array([evaluate(node, dtype) for node in form.matrix], np.float64)
    if form.kind == "affine":
        return tuple(matrix_power(tuple(numbers.tolist()), n_steps).ravel().tolist())
    with np.errstate(all="ignore"):
        return tuple((numbers * n_steps).tolist())


@functools.lru_cache(KEPT)
def _powers(form: Monoid, dtype: np.dtype[Any], tile: TileSizes) -> tuple[float, ...]:
    """The same of a run's steps, of two runs', four, and so on, up to a tile's or more; in waves then of what a
    lane's tiles are, of two lanes', four, and so on."""
    n = n_powers(tile)
    if form.kind in ("argmax", "argmin"):
        return (0.0,) * n
    numbers = tuple(evaluate(node, dtype) for node in form.matrix)
    parts = [(tile.run, n)]
    if tile.stages:
        parts = [(tile.run, tile.level + 1), (tile.steps * tile.lane_tiles, n - tile.level - 1)]
    if form.kind == "affine":
        powers = [matrix_powers(numbers, n_steps, count) for n_steps, count in parts]
        return tuple(np.concatenate(powers).ravel().tolist())
    with np.errstate(all="ignore"):
        return tuple(
            number
            for n_steps, count in parts
            for number in (numbers[0] * n_steps * 2.0 ** np.arange(count)).tolist()
        )
