"""Launches of user-defined scans on CUDA: kernels compiled from a recurrence, and their arguments.

Nothing here synchronises. The first call of a recurrence compiles; later calls can be captured in a CUDA graph. An
update of the form gates * state + tokens runs through the kernels of `linear_recurrence` instead.

    prepare(spec, arrays) -> LinearLaunch                       of `linear_update`
                          -> ScanLaunch -> KernelLaunch, ...    one structure of arguments, and its kernels
                                           Kernels              compiled, cached by recurrence and request
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._backends.cuda import driver, linear_update
from upsweep._backends.cuda.descriptor import Allocate, ArrayDescriptor
from upsweep._backends.cuda.user_scan_layout import Chunks, ColumnLayout, ScanArrays, column_layout, cut_time
from upsweep._compiler.cuda import nvrtc
from upsweep._compiler.cuda.scalars import SIZES
from upsweep._compiler.cuda.scans import render
from upsweep._compiler.cuda.scans.render import ScanKernels, ScanRequest, Stream
from upsweep._compiler.cuda.scans.single_pass import (
    TileSizes,
    carry_words,
    choose_tile_sizes,
    n_powers,
    workspace_bytes,
)
from upsweep._compiler.formulas.nodes import Node
from upsweep._compiler.recurrences.associative import Monoid, matrix_powers, repeated_factor
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, input_, inputs_read, lifted
from upsweep._core.user_scan import ScanSpec
from upsweep._utils.lru_cache import LRUCache

MAX_KERNELS = 512  # in the cache
MOST_BYTES = 4096  # of a kernel's arguments
MOST_BLOCKS = 2**31 - 1  # of a launch
FEW_CHUNKS = 32  # of a column: one thread joins them
_WORD, _DOUBLE = struct.Struct("Q"), struct.Struct("d")
ORDINARY = 1e75  # below it, products of numbers do not overflow; as in kernels/look_back.cuh


class Kernels(NamedTuple):
    """The compiled kernels of a recurrence on a device."""

    text: ScanKernels
    run: Any
    join_alone: Any
    join_together: Any
    structure: type[ctypes.Structure]


class _Compact(NamedTuple):
    """A recurrence that reads all of its inputs, with lifted numbers; and which inputs of the scan these are."""

    recurrence: Recurrence
    numbers: tuple[float, ...]
    inputs: tuple[int, ...]


_kernels: LRUCache[Any, Kernels] = LRUCache(MAX_KERNELS)


@functools.lru_cache(MAX_KERNELS)
def _compact(recurrence: Recurrence) -> _Compact:
    plain, numbers = lifted(recurrence)
    read = inputs_read(plain)
    renumbered: dict[Node, Node] = {input_(n): input_(position) for position, n in enumerate(read)}
    return _Compact(plain.rewritten(renumbered, len(read)), numbers, tuple(read))


@functools.lru_cache(MAX_KERNELS)
def _compact_with(recurrence: Recurrence, monoid: Monoid) -> tuple[_Compact, Monoid]:
    """The same, and the monoid with its reduction in terms of these inputs and numbers."""
    k, n = recurrence.n_states, len(recurrence.outputs)
    both = _compact(replace(recurrence, outputs=(*recurrence.outputs, *monoid.reduce.states)))
    plain = replace(both.recurrence, outputs=both.recurrence.outputs[:n])
    reduce = Recurrence(both.recurrence.outputs[n:], (), plain.n_inputs)
    start = monoid.start if monoid.varies or monoid.kind != "affine" else monoid.start[-k:]
    return both._replace(recurrence=plain), _without_numbers(monoid, reduce, start)


def _without_numbers(monoid: Monoid, reduce: Recurrence | None = None, start: tuple[float, ...] = ()) -> Monoid:
    """What the text of the kernels depends on, of a monoid."""
    reduce = _compact(monoid.reduce).recurrence if reduce is None else reduce
    return replace(monoid, reduce=reduce, start=start, matrix=(), bias=None, can_reset=False)


def _compile(recurrence: Recurrence, request: ScanRequest, n_numbers: int, device: int) -> Kernels:
    """Compile and load the kernels of a recurrence; a RuntimeError says what to install if that is missing."""
    gpu = driver.device(device)
    text = render.render_scan(recurrence, request)
    structure = _structure(recurrence, request, n_numbers)
    if ctypes.sizeof(structure) > MOST_BYTES:
        n_arrays = len(request.inputs) + len(request.outputs) + 2 * recurrence.n_states
        raise ValueError(f"update: a scan of {n_arrays} inputs, outputs and states is too large for CUDA")
    module = gpu.load(nvrtc.fetch_or_compile(text.text, text.options, gpu.capability))
    run = module.function("run_scan")
    if text.shared_bytes:
        run.use_shared(text.shared_bytes)
    alone, together = (module.function(name) if text.joiners else None for name in ("join_alone", "join_together"))
    return Kernels(text, run, alone, together, structure)


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
    n_levels = n_powers(request.tile) if request.tile else 1
    of_call: list[tuple[str, Any]] = [
        ("n_columns", place), ("n_steps", place), ("chunk", place), ("n_chunks", place),
        ("shape", place * request.n_dims), ("numbers", number * max(n_numbers, 1)), ("initial", number * k),
        ("matrix", number * (render.n_matrix(request.monoid, k) * n_levels)),
        ("is_bounded", place), ("reduced", pointer), ("starts", pointer),
        *((name, array * max(count, 1)) for name, count in counts.items()),
    ]  # fmt: skip
    return type("ScanCall", (ctypes.Structure,), {"_fields_": of_call})


class KernelLaunch:
    """Kernels that take one structure of arguments, complete but for the addresses and numbers of a call.

    The structure consists of fields of 8 bytes. Two of them, `reduced` and `starts`, are addresses of temporary
    memory of the call.
    """

    def __init__(self, structure: ctypes.Structure) -> None:
        self.structure = structure
        n_words = ctypes.sizeof(structure) // 8
        self._words: Any = ctypes.c_uint64 * n_words
        self._addresses: list[tuple[int, int]] = []
        self.numbers: list[tuple[int, int]] = []  # of doubles: words from the beginning, operands
        self._kernels: list[tuple[Any, int, int, bool]] = []
        self.n_filled = 0  # bytes of the temporary memory that are filled with ones before the first kernel
        kind: Any = type(structure)
        self._reduced, self._starts = kind.reduced.offset // 8, kind.starts.offset // 8

    def read_address(self, target: Any, operand: int) -> None:
        """Store the address of an operand in `target`, a part of the structure that begins with an address."""
        word = (ctypes.addressof(target) - ctypes.addressof(self.structure)) // 8
        self._addresses.append((word, operand))

    def add(self, function: Any, n_blocks: int, n_threads: int, *, together: bool = False) -> None:
        """Add a kernel after the others; `together`: a cooperative launch, whose blocks wait for each other."""
        self._kernels.append((function, n_blocks, n_threads, together))

    def start(self, operands: Sequence[Any], memory: tuple[int, int], stream: int) -> None:
        """Launch the kernels. Each call copies the structure, since several threads may call at once."""
        words = self._words.from_buffer_copy(self.structure)
        for word, operand in self._addresses:
            words[word] = operands[operand]
        for word, operand in self.numbers:
            (words[word],) = _WORD.unpack(_DOUBLE.pack(operands[operand]))
        words[self._reduced], words[self._starts] = memory
        if self.n_filled:
            device = self._kernels[0][0].device
            device.fill(memory[0], 0xFFFFFFFF, self.n_filled // 4, stream)
        for function, n_blocks, n_threads, together in self._kernels:
            launch = function.launch_together if together else function.launch
            launch(n_blocks, n_threads, stream, words)


class _Operand(NamedTuple):
    """An array of a scan: its position among the operands of a call, and its strides along the columns."""

    position: int
    array: ArrayDescriptor
    strides: tuple[int, ...]


class _Scan:
    """The arrays of a scan, and the axes of their columns."""

    def __init__(self, spec: ScanSpec, arrays: ScanArrays, device: int) -> None:
        self.spec, self.arrays, self.device = spec, arrays, device
        n_inputs, n_timed = len(arrays.inputs), len(arrays.inputs) + len(arrays.outputs)
        self.first_output, self.first_state, self.first_final = n_inputs, n_timed, n_timed + len(arrays.states)
        present = [(n, array) for n, array in enumerate(arrays.operands) if isinstance(array, ArrayDescriptor)]
        strides = [array.strides[1:] if n < n_timed else array.strides for n, array in present]
        # The columns are ordered as in the first array that is not broadcast, outputs before inputs.
        ranked = sorted(range(len(present)), key=lambda k: not n_inputs <= present[k][0] < n_timed)
        reference = next((k for k in ranked if 0 not in strides[k]), next(iter(ranked), 0))
        time_strides = (present[k][1].strides[0] for k in ranked if present[k][0] < n_timed)
        time_stride = next((stride for stride in time_strides if stride != 0), 0)
        self.layout = column_layout(spec.columns, strides, time_stride, reference)
        self.operands = {n: _Operand(n, array, own) for (n, array), own in zip(present, self.layout.strides)}

    def prepare(
        self, compact: _Compact, *, monoid: Monoid | None = None, is_reduction: bool = False,
        chunks: Chunks | None = None, initial: Sequence[float] = (), matrix: Sequence[float] = (),
        tile: TileSizes | None = None,
    ) -> KernelLaunch:  # fmt: skip
        """Prepare the scan of a recurrence.

        With `is_reduction` the recurrence computes what chunks do to a state from `initial`. `monoid` joins the
        chunks before the scan, by `matrix`, what the steps of a chunk multiply with. With `tile`, lines are
        scanned in one pass, and chunks are the runs of a lane.
        """
        recurrence, layout, arrays = compact.recurrence, self.layout, self.arrays
        cut = _Cut(layout, chunks)
        lines = layout.lines and (chunks is not None or layout.n_columns > 1)
        inputs = [self.operands[n] for n in compact.inputs]
        fixed = [x.array.strides[0] == 0 for x in inputs]
        streams = tuple(
            Stream(x.array.dtype, flag, _known_step(x.array) if tile else 0) for x, flag in zip(inputs, fixed)
        )
        n_processors = driver.device(self.device).n_processors
        columns_per_processor = -(-cut.n_columns // n_processors)
        unused = (None,) * recurrence.n_states
        blocks = 1 if lines else render.threads_of(columns_per_processor) // render.THREADS
        request = ScanRequest(
            dtype=self.spec.dtype.name, inputs=streams,
            outputs=() if is_reduction else tuple(y.dtype for y in arrays.outputs),
            initial=unused if is_reduction else tuple(getattr(s, "dtype", None) for s in arrays.states),
            finals=unused if is_reduction else tuple(getattr(s, "dtype", None) for s in arrays.finals),
            n_dims=len(cut.shape), lines=lines,
            ahead=1 if lines else render.choose_ahead(recurrence, streams, columns_per_processor),
            blocks=tile.blocks if tile else blocks, chunk_dim=cut.chunk_dim, reduces=is_reduction, monoid=monoid,
            tile=tile, output_steps=tuple(map(_known_step, arrays.outputs)) if tile else (),
        )  # fmt: skip
        kernels = _kernels.get_or_build(
            (recurrence, request, self.device),
            lambda: _compile(recurrence, request, len(compact.numbers), self.device),
        )
        call = kernels.structure()
        launch = KernelLaunch(call)
        call.n_columns, call.n_steps = cut.n_columns, self.spec.length
        call.chunk, call.n_chunks = (chunks.steps, chunks.n) if chunks else (self.spec.length, 1)
        call.shape[:] = cut.shape
        call.numbers[: len(compact.numbers)] = compact.numbers
        call.matrix[: len(matrix)] = matrix

        def set_array(target: Any, operand: _Operand | None, has_time: bool) -> None:
            if operand is not None:
                launch.read_address(target, operand.position)
                cut.describe(target, operand.array.strides[0] if has_time else 0, operand.strides)

        for field, is_fixed in (("inputs", False), ("fixed", True)):
            chosen = [x for x, flag in zip(inputs, fixed) if flag is is_fixed]
            for target, x in zip(getattr(call, field), chosen):
                set_array(target, x, True)
        if is_reduction:
            call.initial[:] = initial
        else:
            for n in range(len(arrays.outputs)):
                set_array(call.outputs[n], self.operands[self.first_output + n], True)
            for n in range(recurrence.n_states):
                set_array(call.states[n], self.operands.get(self.first_state + n), False)
                set_array(call.finals[n], self.operands.get(self.first_final + n), False)
                if self.first_state + n not in self.operands:
                    launch.numbers.append((kernels.structure.initial.offset // 8 + n, self.first_state + n))
        if tile is not None:
            n_tiles = -(-self.spec.length // tile.steps)
            call.n_columns, call.chunk, call.n_chunks = layout.n_columns, tile.steps, n_tiles
            call.is_bounded = all(abs(number) < ORDINARY for number in matrix)
            n_blocks = _checked(layout.n_columns * n_tiles)
            if tile.stages:
                launch.add(kernels.run, min(n_processors, n_blocks), kernels.text.threads, together=True)
            else:
                launch.add(kernels.run, n_blocks, kernels.text.threads)
            return launch
        if monoid is not None and chunks is not None:
            launch.add(*self._join_grid(kernels, chunks))
        launch.add(kernels.run, *self._scan_grid(kernels, cut, lines, n_processors))
        return launch

    def _join_grid(self, kernels: Kernels, chunks: Chunks) -> tuple[Any, int, int]:
        """The kernel that joins the chunks, its blocks, and the threads of each."""
        n_columns, threads = self.layout.n_columns, kernels.text.threads
        if chunks.n <= FEW_CHUNKS:
            return kernels.join_alone, _checked(-(-n_columns // threads)), threads
        return kernels.join_together, _checked(n_columns), kernels.text.joiners

    def _scan_grid(self, kernels: Kernels, cut: _Cut, lines: bool, n_processors: int) -> tuple[int, int]:
        """The blocks of the scan's kernel, and the threads of each."""
        threads = kernels.text.threads
        if lines:
            squares = cut.n_columns // cut.shape[-1] * -(-cut.shape[-1] // 32)
            return _checked(-(-squares // (threads // 32))), threads
        while threads > 32 and cut.n_columns < 2 * threads * n_processors:
            threads //= 2  # so that every processor has a part
        return _checked(-(-cut.n_columns // threads)), threads


def _known_step(array: ArrayDescriptor) -> int:
    """The stride in time if steps are contiguous in memory, which the code has as a constant; else 0."""
    return array.strides[0] if abs(array.strides[0]) == SIZES[array.dtype] else 0


class _Cut:
    """The axes of the columns, with one that counts chunks of time: the innermost of lines, else the outermost."""

    def __init__(self, layout: ColumnLayout, chunks: Chunks | None) -> None:
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


class ScanLaunch:
    """The kernels of a scan in order, and the size of the memory that they share.

    Time is sequential, one thread for a column; or lines are scanned in one pass, tile after tile; or time is cut
    into chunks, which are columns of their own: one scan computes what each chunk does to a state, a second kernel
    the states before the chunks, and one more scan the results.
    """

    def __init__(self, spec: ScanSpec, arrays: ScanArrays, monoid: Monoid | None, device: int) -> None:
        self._n_bytes, self._n_reduced, self._launches = 0, 0, list[KernelLaunch]()
        scan, recurrence = _Scan(spec, arrays, device), spec.recurrence
        if monoid is not None and self._prepare_tiles(scan, monoid):
            return
        compact = _compact(recurrence)
        chunks = cut_time(spec.length, scan.layout.n_columns) if monoid is not None else None
        if monoid is None or chunks is None or chunks.n < 2:
            self._launches.append(scan.prepare(compact))
            return
        reduction = _compact(replace(monoid.reduce, outputs=()))
        n_bytes = scan.layout.n_columns * chunks.n * spec.dtype.itemsize
        self._n_reduced = monoid.reduce.n_states * n_bytes
        self._n_bytes = self._n_reduced + recurrence.n_states * n_bytes
        matrix = () if monoid.varies else repeated_factor(monoid, spec.dtype, chunks.steps)
        self._launches += [
            scan.prepare(reduction, is_reduction=True, chunks=chunks, initial=monoid.start),
            scan.prepare(compact, monoid=_without_numbers(monoid), chunks=chunks, matrix=matrix),
        ]

    def _prepare_tiles(self, scan: _Scan, monoid: Monoid) -> bool:
        """Prepare one pass over tiles of lines, if there is one for such a scan."""
        spec, n_states = scan.spec, scan.spec.recurrence.n_states
        compact, plain = _compact_with(spec.recurrence, monoid)
        inputs = [scan.operands[n].array for n in compact.inputs]
        sizes = [SIZES[array.dtype] for array in inputs if array.strides[0] != 0]
        n_lines, gpu = scan.layout.n_columns, driver.device(scan.device)
        tile = choose_tile_sizes(
            plain, n_states, sizes, [SIZES[array.dtype] for array in scan.arrays.outputs], n_lines, spec.length,
            gpu.n_processors, gpu.shared_bytes,
        )  # fmt: skip
        if tile is None or not scan.layout.lines or spec.length <= tile.steps:
            return False
        n_tiles = -(-spec.length // tile.steps)
        if n_lines * n_tiles > MOST_BLOCKS:
            return False
        chunks = Chunks(tile.run, -(-spec.length // tile.run))
        matrix = () if monoid.varies else _powers(monoid, spec.dtype, tile)
        self._launches.append(scan.prepare(compact, monoid=plain, chunks=chunks, matrix=matrix, tile=tile))
        n_waves = -(-n_lines * n_tiles // min(gpu.n_processors, n_lines * n_tiles))
        self._n_bytes = workspace_bytes(tile, n_lines, n_tiles, carry_words(plain, n_states), n_states, n_waves)
        self._launches[0].n_filled = self._n_bytes
        return True

    def start(self, operands: Sequence[Any], stream: int, allocate: Allocate) -> None:
        """Start the kernels on a stream.

        `operands` are the addresses of those of `ScanArrays`, in that order; numbers for states that are numbers.
        """
        reduced, owner = allocate(self._n_bytes) if self._n_bytes else (0, None)
        for launch in self._launches:
            launch.start(operands, (reduced, reduced + self._n_reduced), stream)
        del owner  # the allocator reuses the memory in stream order


def prepare(
    spec: ScanSpec, arrays: ScanArrays, monoid: Monoid | None, device: int
) -> ScanLaunch | linear_update.LinearLaunch:
    """Prepare a scan for arrays of the layout of `arrays`, in scan order, whose addresses do not matter.

    The recurrence has the numbers of the host as constants. `monoid` makes time parallel.
    """
    linear = linear_update.prepare(spec, arrays, device) if spec.length else None
    return ScanLaunch(spec, arrays, monoid, device) if linear is None else linear


@functools.lru_cache(MAX_KERNELS)
def _powers(monoid: Monoid, dtype: np.dtype[Any], tile: TileSizes) -> tuple[float, ...]:
    """What 1, 2, 4, ... runs of a lane multiply with, up to a tile or more.

    In waves: up to a tile, then what 1, 2, 4, ... lanes multiply with, each of `lane_tiles` tiles.
    """
    n = n_powers(tile)
    if monoid.kind in ("argmax", "argmin"):
        return (0.0,) * n
    numbers = tuple(evaluate(node, dtype) for node in monoid.matrix)
    parts = [(tile.run, n)]
    if tile.stages:
        parts = [(tile.run, tile.level + 1), (tile.steps * tile.lane_tiles, n - tile.level - 1)]
    if monoid.kind == "affine":
        powers = [matrix_powers(numbers, n_steps, count) for n_steps, count in parts]
        return tuple(np.concatenate(powers).ravel().tolist())
    with np.errstate(all="ignore"):
        return tuple(
            number
            for n_steps, count in parts
            for number in (numbers[0] * n_steps * 2.0 ** np.arange(count)).tolist()
        )
