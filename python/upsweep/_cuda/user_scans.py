"""Scans by an update on a device: kernels made from a recurrence, kept, and launched on the caller's stream.

Nothing here synchronises, but for the first call of a recurrence, which compiles; a later call can be captured in
a graph. Time is sequential, a thread a column; or it is cut into chunks, which are columns of their own: one scan
finds what each does to a state, a second kernel the states before them, and one more scan the results. An update
that is a recurrence of gates and tokens goes to the kernels of `linear_recurrence`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from upsweep._cuda import DeviceArray, driver, linear_updates
from upsweep._cuda.kept import Kept
from upsweep._cuda.scan_layouts import Chunks, Layout, cut_time, lay_out
from upsweep._expr.cuda import nvrtc
from upsweep._expr.cuda.recurrence import (
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
from upsweep._expr.nodes import order, substitute
from upsweep._expr.parallel_forms import Form
from upsweep._expr.recurrence import Recurrence, evaluate, input_, lifted

__all__ = ["run"]

Allocate = Callable[[int], tuple[int, object]]
State = DeviceArray | float

KEPT = 512  # recurrences' kernels in memory
MOST_BYTES = 4096  # of a kernel's arguments
MOST_BLOCKS = 2**31 - 1  # of a launch
FEW_CHUNKS = 32  # of a column, which one thread joins


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


_prepared: Kept[Prepared] = Kept(KEPT)


@functools.lru_cache(KEPT)
def _reading(recurrence: Recurrence) -> _Reading:
    plain, numbers = lifted(recurrence)
    roots = (*plain.states, *plain.outputs)
    read = sorted({n.static[0] for n in order(*roots) if n.op == "variable" and n.static[1] == "j"})
    places = {input_(n): input_(place) for place, n in enumerate(read)}
    new = tuple(substitute(root, places) for root in roots)
    k = plain.n_states
    return _Reading(Recurrence(new[:k], new[k:], len(read)), numbers, tuple(read))


def _prepare(recurrence: Recurrence, request: ScanRequest, n_numbers: int, device: int) -> Prepared:
    """The kernels of a recurrence, compiled and loaded by the first call.

    Raises
    ------
    RuntimeError
        There is no driver or no run-time compiler; the message says what to install.
    """
    key = (recurrence, request, device)
    return _prepared.fetch_or_make(key, lambda: _make(recurrence, request, n_numbers, device))


def _make(recurrence: Recurrence, request: ScanRequest, n_numbers: int, device: int) -> Prepared:
    home = driver.device(device)
    kernels = render_scan(recurrence, request)
    structure = _structure(recurrence, request, n_numbers)
    if ctypes.sizeof(structure) > MOST_BYTES:
        n_arrays = len(request.inputs) + len(request.outputs) + 2 * recurrence.n_states
        raise ValueError(f"update: a scan of {n_arrays} inputs, outputs and states is too large for CUDA")
    module = home.load(nvrtc.fetch_or_compile(kernels.text, kernels.options, home.capability))
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
        ("matrix", number * n_matrix(request.form, k)), ("reduced", pointer), ("starts", pointer),
        *((name, array * max(count, 1)) for name, count in counts.items()),
    ]  # fmt: skip
    return type("ScanCall", (ctypes.Structure,), {"_fields_": of_call})


class _Scan:
    """One call: its arrays, and the axes of its columns."""

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
        stream: int,
    ) -> None:
        self.places = {n: k for k, n in enumerate(n for n, array in enumerate(given) if array is not None)}
        inputs = [array for array in given if array is not None]
        self.dtype, self.inputs, self.outputs, self.states, self.finals = dtype, inputs, outputs, states, finals
        self.length, self.device, self.stream = length, device, stream
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

    def start(
        self, reading: _Reading, *, form: Form | None = None, reduces: Recurrence | None = None,
        chunks: Chunks | None = None, initial: Sequence[float] = (), workspace: tuple[int, int] = (0, 0),
        matrix: Sequence[float] = (),
    ) -> None:  # fmt: skip
        """Launch the scan of a recurrence; with `form`, the joining of its chunks before."""
        is_reduction = reduces is not None
        recurrence, layout = reading.recurrence, self.layout
        strides = iter(layout.strides)
        of_inputs, of_outputs = ([next(strides) for _ in part] for part in (self.inputs, self.outputs))
        of_states = [next(strides) if isinstance(s, DeviceArray) else () for s in self.states]
        of_finals = [() if s is None else next(strides) for s in self.finals]
        cut = _Cut(layout, chunks)
        lines = layout.lines and (chunks is not None or layout.n_columns > 1)
        places = [self.places[n] for n in reading.inputs]
        arrays = [(self.inputs[place], of_inputs[place]) for place in places]
        fixed = [array.strides[0] == 0 for array, _ in arrays]
        streams = tuple(Stream(array.dtype, flag) for (array, _), flag in zip(arrays, fixed))
        n_processors = driver.device(self.device).n_processors
        of_processor = -(-cut.n_columns // n_processors)
        ahead = 1 if lines else choose_ahead(recurrence, streams, of_processor)
        blocks = 1 if lines else threads_of(of_processor) // THREADS
        outputs = () if is_reduction else tuple(array.dtype for array in self.outputs)
        nothing = (None,) * recurrence.n_states
        request = ScanRequest(
            self.dtype, streams, outputs,
            nothing if is_reduction else tuple(getattr(state, "dtype", None) for state in self.states),
            nothing if is_reduction else tuple(getattr(final, "dtype", None) for final in self.finals),
            len(cut.shape), lines, ahead, blocks,
            cut.chunk_dim, is_reduction, form,
        )  # fmt: skip
        made = _prepare(recurrence, request, len(reading.numbers), self.device)
        call = made.structure()
        call.n_columns, call.n_steps = cut.n_columns, self.length
        call.chunk, call.n_chunks = (chunks.steps, chunks.n) if chunks else (self.length, 1)
        call.shape[:] = cut.shape
        call.numbers[: len(reading.numbers)] = reading.numbers
        call.matrix[: len(matrix)] = matrix
        call.reduced, call.starts = workspace
        for field, wanted in (("inputs", False), ("fixed", True)):
            chosen = [pair for pair, flag in zip(arrays, fixed) if flag is wanted]
            for target, (array, own) in zip(getattr(call, field), chosen):
                cut.describe(target, array, array.strides[0], own)
        if is_reduction:
            call.initial[:] = initial
        else:
            for target, array, own in zip(call.outputs, self.outputs, of_outputs):
                cut.describe(target, array, array.strides[0], own)
            for place, (state, own) in enumerate(zip(self.states, of_states)):
                if isinstance(state, DeviceArray):
                    cut.describe(call.states[place], state, 0, own)
                else:
                    call.initial[place] = state
            for target, final, own in zip(call.finals, self.finals, of_finals):
                if final is not None:
                    cut.describe(target, final, 0, own)
        if form is not None and chunks is not None:
            self._join(made, call, chunks)
        self._launch(made, call, cut, lines, n_processors)

    def _join(self, made: Prepared, call: Any, chunks: Chunks) -> None:
        n_columns, threads = self.layout.n_columns, made.kernels.threads
        if chunks.n <= FEW_CHUNKS:
            made.join_alone.launch(_blocks(-(-n_columns // threads)), threads, self.stream, call)
        else:
            made.join_together.launch(_blocks(n_columns), made.kernels.joiners, self.stream, call)

    def _launch(self, made: Prepared, call: Any, cut: _Cut, lines: bool, n_processors: int) -> None:
        threads = made.kernels.threads
        if lines:
            squares = cut.n_columns // cut.shape[-1] * -(-cut.shape[-1] // 32)
            made.run.launch(_blocks(-(-squares // (threads // 32))), threads, self.stream, call)
            return
        while threads > 32 and cut.n_columns < 2 * threads * n_processors:
            threads //= 2  # so that every processor has a part
        made.run.launch(_blocks(-(-cut.n_columns // threads)), threads, self.stream, call)


class _Cut:
    """The axes of a layout, with one that counts chunks of time: the innermost of lines, else the outermost."""

    def __init__(self, layout: Layout, chunks: Chunks | None) -> None:
        self.chunks, self.first = chunks, not layout.lines
        shape = layout.shape
        if chunks is not None:
            shape = (chunks.n, *shape) if self.first else (*shape, chunks.n)
        self.shape, self.n_columns = shape, layout.n_columns * (chunks.n if chunks else 1)
        self.chunk_dim = -1 if chunks is None else 0 if self.first else len(shape) - 1

    def describe(self, target: Any, array: DeviceArray, time_stride: int, strides: tuple[int, ...]) -> None:
        target.data, target.time_stride = array.pointer, time_stride
        if self.chunks is not None:
            step = self.chunks.steps * time_stride
            strides = (step, *strides) if self.first else (*strides, step)
        target.strides[:] = strides


def _blocks(n: int) -> int:
    if n > MOST_BLOCKS:
        raise ValueError(f"xs: {n} blocks of columns are too many for one call")
    return n


def run(
    recurrence: Recurrence,
    dtype: str,
    inputs: Sequence[DeviceArray | None],
    outputs: Sequence[DeviceArray],
    states: Sequence[State],
    finals: Sequence[DeviceArray | None],
    length: int,
    columns: tuple[int, ...],
    form: Form | None,
    *,
    device: int,
    stream: int,
    allocate: Allocate,
) -> None:
    """Start a scan by an update.

    Parameters
    ----------
    recurrence : Recurrence
        What a step does.
    dtype : str
        "float32" or "float64": what is calculated in.
    inputs, outputs : sequence of DeviceArray
        Of shape (length, *columns), in the order of the scan; any strides. Outputs are floating or bool.
        None for an input that the recurrence does not read.
    states : sequence of DeviceArray or float
        Before the first step: of shape `columns`, or a number.
    finals : sequence of DeviceArray or None
        Where the states after the last step go.
    form : Form, optional
        What makes time parallel; without it time is sequential.
    allocate : callable
        As that of `run_scan`.
    """
    where: dict[str, Any] = {"device": device, "stream": stream, "allocate": allocate}
    if length and linear_updates.run(recurrence, inputs, outputs, states, finals, columns, **where):
        return
    scan = _Scan(dtype, inputs, outputs, states, finals, length, columns, device, stream)
    reading = _reading(recurrence)
    chunks = cut_time(length, scan.layout.n_columns) if form is not None else None
    if form is None or chunks is None or chunks.n < 2:
        scan.start(reading)
        return
    reduction = _reading(replace(form.reduce, outputs=()))
    n_columns, size = scan.layout.n_columns * chunks.n, SIZES[dtype]
    n_reduced = form.reduce.n_states
    pointer, keep = allocate((n_reduced + recurrence.n_states) * n_columns * size)
    workspace = pointer, pointer + n_reduced * n_columns * size
    scan.start(reduction, reduces=recurrence, chunks=chunks, initial=form.start, workspace=workspace)
    matrix = () if form.varies else _repeated(form, recurrence.n_states, np.dtype(dtype), chunks.steps)
    scan.start(reading, form=_plain(form), chunks=chunks, workspace=workspace, matrix=matrix)
    del keep


@functools.lru_cache(KEPT)
def _plain(form: Form) -> Form:
    """The form without its numbers, which are no part of the text."""
    reduce = _reading(form.reduce).recurrence
    return Form(form.kind, reduce, (), form.varies, (), form.decides, form.keeps_ties)


@functools.lru_cache(KEPT)
def _repeated(form: Form, n_states: int, dtype: np.dtype[Any], n_steps: int) -> tuple[float, ...]:
    """What so many steps of the same do: the matrix to that power, or so many times the shift."""
    if form.kind in ("argmax", "argmin"):
        return ()
    numbers = np.array([evaluate(node, dtype) for node in form.matrix], np.float64)
    with np.errstate(all="ignore"):
        if form.kind != "affine":
            return tuple((numbers * n_steps).tolist())
        power = np.linalg.matrix_power(numbers.reshape(n_states, n_states), n_steps)
    return tuple(power.ravel().tolist())
