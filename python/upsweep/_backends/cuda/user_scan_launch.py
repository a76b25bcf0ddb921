"""Launches of user-defined scans on CUDA: kernels compiled from a recurrence, and their arguments.

Nothing here synchronises. The first call of a recurrence compiles; later calls can be captured in a CUDA graph. An
update of the form gates * state + tokens runs through the kernels of `linear_recurrence` instead.

    prepare(spec, arrays) -> linear_update.LinearLaunch
                          -> driver.PreparedCall -> KernelSequence, ...   arguments, and `Kernels`, which are
                                                                          cached by recurrence and request
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._backends.cuda import driver, linear_update
from upsweep._backends.cuda.descriptor import ArrayDescriptor, ScanArrays
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
from upsweep._compiler.recurrences.associative import Monoid, Product, matrix_powers, repeated_factor
from upsweep._compiler.recurrences.integers import as_word, integer_variable
from upsweep._compiler.recurrences.recurrence import Recurrence, evaluate, input_, inputs_read, lifted
from upsweep._core.layout import merge_axes
from upsweep._core.user_scan import ScanSpec
from upsweep._utils.lru_cache import LRUCache

MAX_KERNELS = 512  # in the cache
MOST_BYTES = 4096  # of a kernel's arguments
MOST_BLOCKS = 2**31 - 1  # of a launch
FEW_CHUNKS = 32  # of a column: one thread joins them; a warp, of updates that extend to all states
ORDINARY = 1e75  # below it, products of numbers do not overflow; as in kernels/look_back.cuh
# Columns times chunks that keep 32 KiB in flight in each processor of a large device; more are only more to join.
CHUNKED_COLUMNS = 32_768
LEAST_CHUNK, WHOLE = 64, 32  # steps: shorter chunks are not worth it; chunks are multiples of 32


class Chunks(NamedTuple):
    """The steps of a chunk, and the number of chunks; the last one may be shorter."""

    steps: int
    n: int


def cut_time(length: int, n_columns: int) -> Chunks:
    """As many chunks of time as fill a large device, together with the columns, on any device."""
    n_chunks = max(1, CHUNKED_COLUMNS // max(n_columns, 1))
    steps = max(LEAST_CHUNK, -(-length // n_chunks))
    steps = -(-steps // WHOLE) * WHOLE
    return Chunks(steps, max(1, -(-length // steps)))


class PartPlace(NamedTuple):
    """Where independent states begin: among all states, and in the numbers of what a chunk does."""

    state: int
    reduced: int


class Kernels(NamedTuple):
    """The compiled kernels of a recurrence on a device."""

    text: ScanKernels
    functions: dict[str, Any]
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
    renumbered: dict[Node, Node] = {
        of_kind(n): of_kind(position)
        for position, n in enumerate(read)
        for of_kind in (input_, functools.partial(integer_variable, kind="j"))
    }
    return _Compact(plain.rewritten(renumbered, len(read)), numbers, tuple(read))


@functools.lru_cache(MAX_KERNELS)
def _compact_with(recurrence: Recurrence, monoid: Monoid) -> tuple[_Compact, Monoid]:
    """The same, and the monoid with its reduction and its parts in terms of these inputs and numbers."""
    k, n = recurrence.n_states, len(recurrence.outputs)
    end = n + monoid.reduce.n_states
    both = _compact(replace(recurrence, outputs=(*recurrence.outputs, *monoid.reduce.states, *monoid.parts)))
    outputs = both.recurrence.outputs
    plain = replace(both.recurrence, outputs=outputs[:n])
    reduce = Recurrence(outputs[n:end], (), plain.n_inputs)
    start = monoid.start if monoid.varies or monoid.kind != "affine" else monoid.start[-k:]
    of_text = replace(
        monoid, reduce=reduce, start=start, parts=outputs[end:], matrix=(), bias=None, can_reset=False
    )
    return both._replace(recurrence=plain), of_text


def _compile(recurrence: Recurrence, request: ScanRequest, n_numbers: int, device: int) -> Kernels:
    """Compile and load the kernels of a recurrence; a RuntimeError says what to install if that is missing."""
    gpu = driver.device(device)
    text = render.ScanKernels(recurrence, request)
    structure = _structure(recurrence, request, n_numbers)
    if ctypes.sizeof(structure) > MOST_BYTES:
        n_arrays = len(request.inputs) + len(request.outputs) + 2 * recurrence.n_states
        raise ValueError(f"update: a scan of {n_arrays} inputs, outputs and states is too large for CUDA")
    module = gpu.load(nvrtc.fetch_or_compile(text.text, text.options, gpu.capability))
    functions = {"run_scan": module.function("run_scan")}
    if text.shared_bytes:
        functions["run_scan"].use_shared(text.shared_bytes)
    if text.joiners:
        functions |= {name: module.function(name) for name in ("join_alone", "join_together")}
    return Kernels(text, functions, structure)


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


class _Scan:
    """The arrays of a scan, by the positions of their addresses in a call, and the axes of their columns.

    `shape` are the axes of the columns, from the outermost in memory to the innermost; contiguous axes are merged.
    `strides` are those of each array along these axes, in bytes. In `lines`, steps of a column are closer in
    memory than neighbouring columns.
    """

    def __init__(self, spec: ScanSpec, arrays: ScanArrays, device: int) -> None:
        self.spec, self.arrays, self.device = spec, arrays, device
        n_inputs, n_timed = len(arrays.inputs), len(arrays.inputs) + len(arrays.outputs)
        self.first_output, self.first_state, self.first_final = n_inputs, n_timed, n_timed + len(arrays.states)
        present = {n: array for n, array in enumerate(arrays.operands) if isinstance(array, ArrayDescriptor)}
        self.time_strides = {n: array.strides[0] if n < n_timed else 0 for n, array in present.items()}
        strides = {n: array.strides[1:] if n < n_timed else array.strides for n, array in present.items()}
        # The columns are ordered as in the first array that is not broadcast, outputs before inputs.
        ranked = sorted(present, key=lambda n: not n_inputs <= n < n_timed)
        like = next((n for n in ranked if 0 not in strides[n]), next(iter(ranked), 0))
        reference = strides.get(like, (0,) * len(spec.columns))
        axes = sorted((d for d, n in enumerate(spec.columns) if n != 1), key=lambda d: (-abs(reference[d]), d))
        by_array = [[own[d] for d in axes] for own in strides.values()]
        shape, merged = merge_axes([spec.columns[d] for d in axes], by_array)
        self.shape, self.lines = tuple(shape) or (1,), True
        self.strides = {n: tuple(own) or (0,) for n, own in zip(present, merged)}
        self.n_columns = math.prod(self.shape)
        if shape:
            time_stride = next((self.time_strides[n] for n in ranked if self.time_strides[n] != 0), 0)
            self.lines = 0 < abs(time_stride) < abs(self.strides.get(like, (0,))[-1])

    def prepare(
        self, compact: _Compact, *, monoid: Monoid | None = None, is_reduction: bool = False,
        chunks: Chunks | None = None, initial: Sequence[float] = (), matrix: Sequence[float] = (),
        tile: TileSizes | None = None, n_reduced: int = 0, part: PartPlace | None = None, joined: bool = False,
    ) -> driver.KernelSequence:  # fmt: skip
        """Prepare the scan of a recurrence.

        With `is_reduction` the recurrence computes what chunks do to a state from `initial`. `monoid` joins the
        chunks before the scan, by `matrix`, what the steps of a chunk multiply with. With `tile`, lines are
        scanned in one pass, and chunks are the runs of a lane. The aggregates of chunks take `n_reduced` bytes.
        With `part` chunks are joined and not scanned, and the recurrence is of some of the states; `joined` scans
        chunks whose states before them are known.
        """
        recurrence, arrays = compact.recurrence, self.arrays
        shape, n_columns, chunk_dim = self.shape, self.n_columns, -1
        if chunks is not None:  # an axis of the columns: the innermost of lines, else the outermost
            shape = (*shape, chunks.n) if self.lines else (chunks.n, *shape)
            n_columns, chunk_dim = n_columns * chunks.n, len(self.shape) if self.lines else 0
        lines = self.lines and (chunks is not None or self.n_columns > 1)
        fixed = [self.time_strides[n] == 0 for n in compact.inputs]
        streams = tuple(
            Stream(arrays.inputs[n].dtype, flag, _known_step(arrays.inputs[n]) if tile else 0)
            for n, flag in zip(compact.inputs, fixed)
        )
        n_processors = driver.device(self.device).n_processors
        columns_per_processor = -(-n_columns // n_processors)
        unused = (None,) * recurrence.n_states
        place = part or PartPlace(0, 0)
        own_states = arrays.states[place.state : place.state + recurrence.n_states]
        # Others are joined by one thread then, by kernels of the same text as many chunks.
        extends = monoid is not None and bool(monoid.parts)
        few_chunks = extends and tile is None and chunks is not None and chunks.n <= FEW_CHUNKS
        blocks = 1 if lines else render.threads_of(columns_per_processor) // render.THREADS
        request = ScanRequest(
            dtype=self.spec.dtype.name, inputs=streams,
            outputs=() if is_reduction or part else tuple(y.dtype for y in arrays.outputs),
            initial=unused if is_reduction else tuple(getattr(s, "dtype", None) for s in own_states),
            finals=unused if is_reduction or part else tuple(getattr(s, "dtype", None) for s in arrays.finals),
            n_dims=len(shape), lines=lines,
            ahead=1 if lines else render.choose_ahead(recurrence, streams, columns_per_processor),
            blocks=tile.blocks if tile else blocks, chunk_dim=chunk_dim, reduces=is_reduction, monoid=monoid,
            few_chunks=few_chunks, tile=tile, output_steps=tuple(map(_known_step, arrays.outputs)) if tile else (),
            joined=joined,
        )  # fmt: skip
        kernels = _kernels.get_or_build(
            (recurrence, request, self.device),
            lambda: _compile(recurrence, request, len(compact.numbers), self.device),
        )
        call = kernels.structure()
        sequence, kind = driver.KernelSequence(call), kernels.structure
        n_row = n_columns * self.spec.dtype.itemsize  # bytes of one number of each chunk
        call.reduced, call.starts = place.reduced * n_row, n_reduced + place.state * n_row
        sequence.in_memory += [kind.reduced.offset // 8, kind.starts.offset // 8]
        call.n_columns, call.n_steps = n_columns, self.spec.length
        call.chunk, call.n_chunks = (chunks.steps, chunks.n) if chunks else (self.spec.length, 1)
        call.shape[:] = shape
        call.numbers[: len(compact.numbers)] = compact.numbers
        call.matrix[: len(matrix)] = matrix

        def set_arrays(targets: Any, operands: Iterable[int]) -> None:
            for target, n in zip(targets, operands):
                if n not in self.strides:
                    continue
                sequence.addresses.append(((ctypes.addressof(target) - ctypes.addressof(call)) // 8, n))
                target.time_stride, strides = self.time_strides[n], self.strides[n]
                if chunks is not None:
                    step = chunks.steps * self.time_strides[n]
                    strides = (*strides, step) if self.lines else (step, *strides)
                target.strides[:] = strides

        for targets, is_fixed in ((call.inputs, False), (call.fixed, True)):
            set_arrays(targets, [n for n, flag in zip(compact.inputs, fixed) if flag is is_fixed])
        if is_reduction:
            call.initial[:] = initial
        else:
            n_states, first_state = recurrence.n_states, self.first_state + place.state
            if part is None:
                set_arrays(call.outputs, range(self.first_output, self.first_state))
                set_arrays(call.finals, range(self.first_final, self.first_final + n_states))
            set_arrays(call.states, range(first_state, first_state + n_states))
            sequence.numbers += [
                (kind.initial.offset // 8 + n, first_state + n)
                for n in range(n_states)
                if first_state + n not in self.strides
            ]
        if tile is not None:
            n_tiles = -(-self.spec.length // tile.steps)
            call.n_columns, call.chunk, call.n_chunks = self.n_columns, tile.steps, n_tiles
            call.is_bounded = all(abs(number) < ORDINARY for number in matrix)
            n_blocks, together = self.n_columns * n_tiles, bool(tile.stages)
            n_blocks = min(n_processors, n_blocks) if together else n_blocks
            grids = [("run_scan", n_blocks, kernels.text.threads)]
        else:
            grids, together = [], False
            if monoid is not None and chunks is not None:
                grids.append(self._join_grid(kernels, chunks))
            if part is None:
                grids.append(
                    ("run_scan", *_scan_grid(kernels.text.threads, shape, n_columns, lines, n_processors))
                )
        for name, n_blocks, n_threads in grids:
            if n_blocks > MOST_BLOCKS:
                raise ValueError(f"xs: {n_blocks} blocks of columns are too many for one call")
            sequence.launches.append(
                driver.Launch(kernels.functions[name], n_blocks, n_threads, together=together)
            )
        return sequence

    def _join_grid(self, kernels: Kernels, chunks: Chunks) -> tuple[str, int, int]:
        """The kernel that joins the chunks, its blocks, and the threads of each."""
        n_columns, threads = self.n_columns, kernels.text.threads
        if chunks.n <= FEW_CHUNKS and not kernels.text.extends:
            return "join_alone", -(-n_columns // threads), threads
        return "join_together", n_columns, kernels.text.joiners


def _scan_grid(
    threads: int, shape: tuple[int, ...], n_columns: int, lines: bool, n_processors: int
) -> tuple[int, int]:
    """The blocks of the scan's kernel, and the threads of each."""
    if lines:
        squares = n_columns // shape[-1] * -(-shape[-1] // 32)
        return -(-squares // (threads // 32)), threads
    while threads > 32 and n_columns < 2 * threads * n_processors:
        threads //= 2  # so that every processor has a part
    return -(-n_columns // threads), threads


def _known_step(array: ArrayDescriptor) -> int:
    """The stride in time if steps are contiguous in memory, which the code has as a constant; else 0."""
    return array.strides[0] if abs(array.strides[0]) == SIZES[array.dtype] else 0


def prepare(
    spec: ScanSpec, arrays: ScanArrays, monoid: Monoid | Product | None, device: int
) -> driver.PreparedCall | linear_update.LinearLaunch:
    """Prepare a scan for arrays of the layout of `arrays`, in scan order, whose addresses do not matter.

    The recurrence has the numbers of the host as constants. `monoid` makes time parallel. The operands of a call
    are the addresses of those of `ScanArrays`, in that order; numbers for states that are numbers.

    Time is sequential, one thread for a column; or lines are scanned in one pass, tile after tile; or time is cut
    into chunks, which are columns of their own: one scan computes what each chunk does to a state, a second kernel
    the states before the chunks, and one more scan the results.
    """
    linear = linear_update.prepare(spec, arrays, device) if spec.length else None
    if linear is not None:
        return linear
    scan, recurrence = _Scan(spec, arrays, device), spec.recurrence
    tiled = None if not isinstance(monoid, Monoid) or monoid.kind == "integers" else _prepare_tiles(scan, monoid)
    if tiled is not None:
        return tiled
    chunks = None if monoid is None else cut_time(spec.length, scan.n_columns)
    if monoid is None or chunks is None or chunks.n < 2:
        return driver.PreparedCall([scan.prepare(_compact(recurrence))], 0)
    n_bytes = scan.n_columns * chunks.n * spec.dtype.itemsize  # of one number of each chunk
    n_reduced = monoid.reduce.n_states * n_bytes
    monoids = [part.monoid for part in monoid.parts] if isinstance(monoid, Product) else [monoid]
    start = [number for each in monoids for number in _start(each)]
    reduction = _compact(replace(monoid.reduce, outputs=()))
    of_chunks = functools.partial(scan.prepare, chunks=chunks, n_reduced=n_reduced)
    sequences = [of_chunks(reduction, is_reduction=True, initial=start)]
    if isinstance(monoid, Product):
        reduced = 0
        for part in monoid.parts:
            compact, plain = _compact_with(part.recurrence, part.monoid)
            matrix = () if part.monoid.varies else repeated_factor(part.monoid, spec.dtype, chunks.steps)
            place = PartPlace(part.first, reduced)
            sequences.append(of_chunks(compact, monoid=plain, matrix=matrix, part=place))
            reduced += part.monoid.reduce.n_states
        sequences.append(of_chunks(_compact(recurrence), joined=True))
    else:
        compact, plain = _compact_with(recurrence, monoid)
        matrix = () if monoid.varies else repeated_factor(monoid, spec.dtype, chunks.steps)
        sequences.append(of_chunks(compact, monoid=plain, matrix=matrix))
    return driver.PreparedCall(sequences, n_reduced + recurrence.n_states * n_bytes)


def _start(monoid: Monoid) -> Sequence[float]:
    """The identity, as the numbers of a call."""
    return [*map(as_word, monoid.start)] if monoid.kind == "integers" else monoid.start


def _prepare_tiles(scan: _Scan, monoid: Monoid) -> driver.PreparedCall | None:
    """Prepare one pass over tiles of lines, if there is one for such a scan."""
    spec, n_states = scan.spec, scan.spec.recurrence.n_states
    compact, plain = _compact_with(spec.recurrence, monoid)
    sizes = [SIZES[scan.arrays.inputs[n].dtype] for n in compact.inputs if scan.time_strides[n] != 0]
    n_lines, gpu = scan.n_columns, driver.device(scan.device)
    tile = choose_tile_sizes(
        plain, n_states, sizes, [SIZES[array.dtype] for array in scan.arrays.outputs], n_lines, spec.length,
        gpu.n_processors, gpu.shared_bytes,
    )  # fmt: skip
    if tile is None or not scan.lines or spec.length <= tile.steps:
        return None
    n_tiles = -(-spec.length // tile.steps)
    if n_lines * n_tiles > MOST_BLOCKS:
        return None
    chunks = Chunks(tile.run, -(-spec.length // tile.run))
    matrix = () if monoid.varies else _powers(monoid, spec.dtype, tile)
    sequence = scan.prepare(compact, monoid=plain, chunks=chunks, matrix=matrix, tile=tile)
    n_waves = -(-n_lines * n_tiles // min(gpu.n_processors, n_lines * n_tiles))
    n_words = carry_words(plain, n_states)
    n_bytes = workspace_bytes(tile, n_lines, n_tiles, n_words, n_states, n_waves, bool(plain.parts))
    sequence.n_filled = n_bytes
    return driver.PreparedCall([sequence], n_bytes)


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
