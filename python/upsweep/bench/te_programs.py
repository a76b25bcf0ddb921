"""Programs of `te`, beside copies of the same bytes, numpy step by step, numba's loops and jax's lax.scan.

Each answer is compared with numpy's steps in float64 before it is timed; all programs write into memory that is
there. Builds are timed in new processes, after llvmlite was imported and has compiled something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upsweep import te
from upsweep.bench.harness import Call, copiers, measure, microseconds
from upsweep.bench.peers import optional
from upsweep.bench.report import Row

__all__ = ["PROGRAMS", "Program", "build_milliseconds", "jax_scan", "numba_loop", "rows"]

Array = NDArray[Any]

_STEPS, _BATCH, _HIDDEN = 50, 256, 128
_TOLERANCE = 2e-4


# ---- programs ------------------------------------------------------------------------------------------------


def _columns(update: Callable[[Any, Any], Any]) -> te.Function:
    """state[t] = update(state[t-1], X[t]) for each column; the first state is X's first row."""
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    new = te.compute((m, n), lambda t, i: update(state[t - 1, i], X[t, i]))
    scan = te.scan(init, new, state, inputs=[X])
    return te.build(te.create_schedule(scan.op), [X, scan])


def cumulative_sum() -> te.Function:
    """The sum over the rows before: TVM's tutorial."""
    return _columns(lambda state, x: state + x)


def tanh_recurrence() -> te.Function:
    """A recurrence that no algebra makes parallel in time."""
    return _columns(lambda state, x: te.tanh(state + x))


@dataclass
class _Cell:
    """What a recurrent cell is described with: its product with the state before, and what it is given."""

    X: te.Tensor
    W: te.Tensor
    h: te.Tensor
    product: te.Tensor
    sizes: tuple[Any, Any, int]

    def gate(self, g: int) -> Callable[..., Any]:
        """Gate g before its function."""
        return lambda t, b, j: self.product[t, b, g, j] + self.X[t, b, g, j]

    def compute(self, body: Callable[..., Any], name: str) -> te.Tensor:
        return te.compute(self.sizes, body, name=name)

    def zero(self) -> te.Tensor:
        return te.compute((1, *self.sizes[1:]), lambda *_: 0.0)


def _cell(n_gates: int) -> _Cell:
    T, B, H = te.var("T"), te.var("B"), _HIDDEN
    X, W = te.placeholder((T, B, n_gates, H), name="X"), te.placeholder((n_gates, H, H), name="W")
    h, k = te.placeholder((T, B, H), name="h"), te.reduce_axis((0, H), "k")
    product = te.compute(
        (T, B, n_gates, H), lambda t, b, g, j: te.sum(h[t - 1, b, k] * W[g, k, j], axis=k), name="product"
    )
    return _Cell(X, W, h, product, (T, B, H))


def rnn() -> te.Function:
    """h[t] = tanh(h[t-1] W + X[t])."""
    cell = _cell(1)
    new = cell.compute(lambda t, b, j: te.tanh(cell.gate(0)(t, b, j)), "new")
    scan = te.scan(cell.zero(), new, cell.h, inputs=[cell.X, cell.W])
    return te.build(te.create_schedule(scan.op), [cell.X, cell.W, scan])


def gru() -> te.Function:
    """Gates r and z, and a new value that reads the old one through r, after the product."""
    cell = _cell(3)
    r = cell.compute(lambda t, b, j: te.sigmoid(cell.gate(0)(t, b, j)), "r")
    z = cell.compute(lambda t, b, j: te.sigmoid(cell.gate(1)(t, b, j)), "z")
    new = cell.compute(
        lambda t, b, j: (
            (1 - z[t, b, j]) * te.tanh(cell.X[t, b, 2, j] + r[t, b, j] * cell.product[t, b, 2, j])
            + z[t, b, j] * cell.h[t - 1, b, j]
        ),
        "new",
    )
    scan = te.scan(cell.zero(), new, cell.h, inputs=[cell.X, cell.W])
    return te.build(te.create_schedule(scan.op), [cell.X, cell.W, scan])


def lstm() -> te.Function:
    """Gates f, i, g, o; two states."""
    cell = _cell(4)
    c = te.placeholder(cell.sizes, name="c")
    new_c = cell.compute(
        lambda t, b, j: (
            te.sigmoid(cell.gate(0)(t, b, j)) * c[t - 1, b, j]
            + te.sigmoid(cell.gate(1)(t, b, j)) * te.tanh(cell.gate(2)(t, b, j))
        ),
        "new_c",
    )
    new_h = cell.compute(lambda t, b, j: te.sigmoid(cell.gate(3)(t, b, j)) * te.tanh(new_c[t, b, j]), "new_h")
    cells, hidden = te.scan([cell.zero(), cell.zero()], [new_c, new_h], [c, cell.h], inputs=[cell.X, cell.W])
    return te.build(te.create_schedule(hidden.op), [cell.X, cell.W, cells, hidden])


# ---- the same in numpy ---------------------------------------------------------------------------------------


def _sum_steps(out: Array, x: Array) -> None:
    np.cumsum(x, axis=0, out=out)


def _tanh_steps(out: Array, x: Array) -> None:
    out[0] = x[0]
    for t in range(1, len(x)):
        np.add(out[t - 1], x[t], out=out[t])
        np.tanh(out[t], out=out[t])


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _rnn_steps(out: Array, x: Array, w: Array) -> None:
    out[0] = 0
    for t in range(1, len(x)):
        np.tanh(out[t - 1] @ w[0] + x[t, :, 0], out=out[t])


def _gru_steps(out: Array, x: Array, w: Array) -> None:
    out[0] = 0
    w = np.ascontiguousarray(w.transpose(1, 0, 2))
    for t in range(1, len(x)):
        h = out[t - 1]
        p = (h @ w.reshape(len(w), -1)).reshape(x[t].shape)
        r, z = _sigmoid(p[:, 0] + x[t, :, 0]), _sigmoid(p[:, 1] + x[t, :, 1])
        out[t] = (1 - z) * np.tanh(x[t, :, 2] + r * p[:, 2]) + z * h


def _lstm_steps(cells: Array, out: Array, x: Array, w: Array) -> None:
    cells[0], out[0] = 0, 0
    w = np.ascontiguousarray(w.transpose(1, 0, 2))
    for t in range(1, len(x)):
        p = (out[t - 1] @ w.reshape(len(w), -1)).reshape(x[t].shape) + x[t]
        cells[t] = _sigmoid(p[:, 0]) * cells[t - 1] + _sigmoid(p[:, 1]) * np.tanh(p[:, 2])
        out[t] = _sigmoid(p[:, 3]) * np.tanh(cells[t])


# ---- what is measured ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """One program for arrays of some shapes, the same in numpy's steps, and what its time is compared with.

    `peer` is "us" (microseconds a call), "copy", "numpy" or "numba".
    """

    name: str
    make: Callable[[], te.Function]
    steps: Callable[..., None]
    shape: tuple[int, ...]
    peer: str
    bar: float
    n_gates: int = 0
    n_states: int = 1

    def inputs(self) -> list[Array]:
        generator = np.random.default_rng(0)
        if not self.n_gates:
            return [generator.standard_normal(self.shape).astype("float32")]
        steps, batch, hidden = self.shape
        x = generator.standard_normal((steps, batch, self.n_gates, hidden))
        w = generator.standard_normal((self.n_gates, hidden, hidden)) / np.sqrt(hidden)
        return [x.astype("float32"), w.astype("float32")]

    def results(self, dtype: str = "float32") -> list[Array]:
        return [np.zeros(self.shape, dtype) for _ in range(self.n_states)]


_CELL = (_STEPS, _BATCH, _HIDDEN)
_SIZE = f"{_HIDDEN} hidden, batch {_BATCH}"
PROGRAMS = (
    Program("te sum (10, 1024)", cumulative_sum, _sum_steps, (10, 1024), "us", 10.0),
    Program("te sum (1024, 1024)", cumulative_sum, _sum_steps, (1024, 1024), "copy", 0.9),
    Program("te sum (100,000, 16)", cumulative_sum, _sum_steps, (100_000, 16), "copy", 0.83),
    Program("te tanh (1000, 4096)", tanh_recurrence, _tanh_steps, (1000, 4096), "numba", 6.0),
    Program("te tanh (1000, 4096) by steps", tanh_recurrence, _tanh_steps, (1000, 4096), "numpy", 20.0),
    Program(f"te RNN, {_SIZE}", rnn, _rnn_steps, _CELL, "numpy", 0.67, 1),
    Program(f"te GRU, {_SIZE}", gru, _gru_steps, _CELL, "numpy", 1.0, 3),
    Program(f"te LSTM, {_SIZE}", lstm, _lstm_steps, _CELL, "numpy", 1.0, 4, 2),
)


def numba_loop(out: Array, x: Array) -> Call | None:
    """The tanh recurrence, one column after the other, on all threads; None without numba."""
    numba = optional("numba")
    if numba is None:
        return None
    prange = numba.prange

    def loop(out: Array, x: Array) -> None:
        for column in prange(x.shape[1]):
            state = x[0, column]
            out[0, column] = state
            for t in range(1, x.shape[0]):
                state = np.tanh(state + x[t, column])
                out[t, column] = state

    return partial(numba.njit(parallel=True)(loop), out, x)


def jax_scan(program: Program, x: Array) -> Call | None:
    """A program over columns by jax's lax.scan, compiled; None for cells, and without jax."""
    jax = optional("jax")
    if jax is None or program.n_gates:
        return None
    squash = jax.numpy.tanh if program.make is tanh_recurrence else lambda value: value

    def step(state: Any, x: Any) -> Any:
        new = squash(state + x)
        return new, new

    scanned, given = jax.jit(lambda x: jax.lax.scan(step, x[0], x[1:])[1]), jax.numpy.asarray(x)
    return lambda: scanned(given).block_until_ready()


@cache
def _built(make: Callable[[], te.Function]) -> te.Function:
    return make()


def _is_right(program: Program) -> bool:
    inputs, results = program.inputs(), program.results()
    expected = program.results("float64")
    program.steps(*expected, *(array.astype("float64") for array in inputs))
    _built(program.make)(*inputs, *results)
    return all(
        np.allclose(mine, theirs, rtol=_TOLERANCE, atol=_TOLERANCE * max(1.0, float(np.abs(theirs).max())))
        for mine, theirs in zip(results, expected)
    )


def _row(program: Program, n_threads: int, rounds: int) -> Row:
    unit = {"us": "us", "copy": "of copy"}.get(program.peer, "x")
    if not _is_right(program):
        note = "the answer is wrong: not timed"
        return Row(program.name, "float32", None, None, unit, program.bar, note=note)
    inputs, results, others = program.inputs(), program.results(), program.results()
    ours = partial(_built(program.make), *inputs, *results, n_threads=n_threads)
    n_bytes = sum(array.nbytes for array in (*inputs, *results))
    if program.peer == "us":
        found = microseconds({"ours": ours, "copy": partial(np.copyto, others[0], inputs[0])}, rounds)
        mine, note = found["ours"], f"np.copyto {found['copy']:.2f} us"
        return Row(program.name, "float32", mine / 1e6, mine, "us", program.bar, n_bytes, note=note)
    methods: dict[str, Call | None] = {
        "ours": ours,
        "numpy": partial(program.steps, *others, *inputs),
        "numba": numba_loop(others[0], inputs[0]) if program.peer == "numba" else None,
        "jax": jax_scan(program, inputs[0]),
    }
    if not program.n_gates:
        methods["np.copyto"] = partial(np.copyto, others[0], inputs[0])
    if program.peer == "copy":
        methods |= copiers(inputs[0], others[0], n_threads)
    there = {name: call for name, call in methods.items() if call is not None}
    samples = measure(there, rounds, burst=3)
    peer = samples.fastest("copy") if program.peer == "copy" else program.peer
    figure = samples.best(peer) / samples.best("ours") if peer in there else None
    shown = [name for name in there if name != "ours" and (name == peer or not name.startswith("copy "))]
    note = ", ".join(f"{name.partition(' ')[0]} {samples.best(name) * 1e3:.3g} ms" for name in shown)
    return Row(
        program.name, "float32", samples.best("ours"), figure, unit, program.bar, n_bytes, note=note,
        busy=None if samples.quiet else samples.others,
    )  # fmt: skip


# ---- builds --------------------------------------------------------------------------------------------------

_BUILD = """
import time
import numpy, llvmlite.binding
from upsweep import te
from upsweep.bench import te_programs as programs
if programs.tanh_recurrence()(numpy.zeros((2, 2), "float32")).any():
    raise AssertionError
found, build = [], te.build
def timed(*arguments):
    begin = time.perf_counter()
    result = build(*arguments)
    found.append(time.perf_counter() - begin)
    return result
te.build = timed
programs.{name}()
print(1e3 * found[0])
"""


def build_milliseconds(name: str, from_disk: bool, tries: int = 4) -> float:
    """What `te.build` takes of a program in a new process: the fastest of several."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "UPSWEEP_CACHE_DIR": folder if from_disk else ""}
        times = []
        for _ in range(tries + from_disk):  # the first of those puts it there
            command = [sys.executable, "-c", _BUILD.format(name=name)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            times.append(float(done.stdout))
    return min(times[from_disk:])


def _build_row(name: str, from_disk: bool, tries: int) -> Row:
    found = build_milliseconds(name, from_disk, tries)
    return Row(_build_case(name, from_disk), "float32", found / 1e3, found, "ms", 10.0 if from_disk else 150.0)


def _build_case(name: str, from_disk: bool) -> str:
    return f"te build of {name}, {'from the disk' if from_disk else 'new'}"


def rows(only: str, quick: bool, n_threads: int, progress: Callable[[int, int], None] | None = None) -> list[Row]:
    """Measure the programs whose name and dtype contain `only`; nothing without llvmlite."""
    if optional("llvmlite") is None:
        return []
    chosen = [program for program in PROGRAMS if only in f"{program.name}, float32"]
    found = []
    for program in chosen:
        found.append(_row(program, n_threads, rounds=3 if quick else 10))
        if progress is not None:
            progress(len(found), len(chosen))
    for name in ("cumulative_sum",) if quick else ("cumulative_sum", "lstm"):
        for from_disk in (False, True):
            if only in f"{_build_case(name, from_disk)}, float32":
                found.append(_build_row(name, from_disk, tries=1 if quick else 4))
    return found
