"""Programs of `te`: sums and tanh recurrences over columns, recurrent cells, and what building them costs.

Every program is written once, for CPU and CUDA, and once more in numpy, step by step, as the reference
of its results. On the CPU a cell takes the products of its inputs as an input; on CUDA the LSTM computes them as
well, like torch's. Builds are timed in new processes, after llvmlite was imported and has compiled something.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from upsweep import te
from upsweep.bench import timing

from upsweep_bench import case as base
from upsweep_bench.case import Direct, PeerThresholds, Source, as_numpy, n_threads, sizes

__all__ = ["PROGRAMS", "Arrays", "Case", "build_milliseconds", "builds", "cases"]

Array = NDArray[Any]

_N_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_EXAMINED = 64  # columns of a sum


# ---- programs --------------------------------------------------------------------------------------------------


def _columns(update: Callable[[Any, Any], Any], target: str) -> te.Function:
    """state[t] = update(state[t-1], X[t]) for each column; the first state is X's first row."""
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    new = te.compute((m, n), lambda t, i: update(state[t - 1, i], X[t, i]))
    scan = te.scan(init, new, state, inputs=[X])
    return te.build(te.create_schedule(scan.op), [X, scan], target)


def cumulative_sum(target: str = "cpu") -> te.Function:
    """The sum over the rows before, as in TVM's tutorial."""
    return _columns(lambda state, x: state + x, target)


def tanh_recurrence(target: str = "cpu") -> te.Function:
    """A nonlinear recurrence, which is sequential in time."""
    return _columns(lambda state, x: te.tanh(state + x), target)


class _Cell:
    """A recurrent cell with `n_gates`: its inputs, its output `h` and the preactivations of its gates.

    The arguments are X (T, B, n_gates, H) and W (n_gates, H, H). With `projects` they are X (T, B, H), Wx and W
    (n_gates, H, H), and a bias (n_gates, H), and the cell computes the products X Wx.
    """

    def __init__(self, n_gates: int, hidden: int, batch: Any = None, projects: bool = False) -> None:
        T, B, H = te.var("T"), te.var("B") if batch is None else batch, hidden
        self.sizes, gate_sizes = (T, B, H), (T, B, n_gates, H)
        X = self.X = te.placeholder((T, B, H) if projects else gate_sizes, name="X")
        W = te.placeholder((n_gates, H, H), name="W")
        h = self.h = te.placeholder(self.sizes, name="h")
        k = te.reduce_axis((0, H), "k")
        self.product = te.compute(
            gate_sizes, lambda t, b, g, j: te.sum(h[t - 1, b, k] * W[g, k, j], axis=k), name="product"
        )
        self.inputs = [X, W]
        if projects:
            d, Wx = te.reduce_axis((0, H), "d"), te.placeholder((n_gates, H, H), name="Wx")
            bias = te.placeholder((n_gates, H), name="bias")
            of_x = te.compute(gate_sizes, lambda t, b, g, j: te.sum(X[t, b, d] * Wx[g, d, j], axis=d), name="of_x")
            gates = te.compute(
                gate_sizes, lambda *at: of_x[at] + self.product[at] + bias[at[2], at[3]], name="gates"
            )
            self.gate: Callable[[int], Any] = lambda g: lambda t, b, j: gates[t, b, g, j]
            self.inputs = [X, Wx, W, bias]
        else:
            self.gate = lambda g: lambda t, b, j: self.product[t, b, g, j] + X[t, b, g, j]

    def compute(self, body: Callable[..., Any], name: str) -> te.Tensor:
        return te.compute(self.sizes, body, name=name)

    def build(self, states: Sequence[Any], updates: Sequence[Any], target: str) -> te.Function:
        """The function of the inputs and of one result for each state, the output last. States begin with 0."""
        zeros = [te.compute((1, *self.sizes[1:]), lambda *_: 0.0) for _ in states]
        scanned = te.scan(zeros, list(updates), list(states), inputs=self.inputs)
        results = list(scanned) if isinstance(scanned, (list, tuple)) else [scanned]
        return te.build(te.create_schedule(results[-1].op), [*self.inputs, *results], target)


def rnn(hidden: int, target: str = "cpu") -> te.Function:
    """h[t] = tanh(h[t-1] W + X[t])."""
    cell = _Cell(1, hidden)
    new = cell.compute(lambda t, b, j: te.tanh(cell.gate(0)(t, b, j)), "new")
    return cell.build([cell.h], [new], target)


def gru(hidden: int, target: str = "cpu") -> te.Function:
    """Gates r and z, and a new value that reads the old one through r, after the product."""
    cell = _Cell(3, hidden)
    r = cell.compute(lambda t, b, j: te.sigmoid(cell.gate(0)(t, b, j)), "r")
    z = cell.compute(lambda t, b, j: te.sigmoid(cell.gate(1)(t, b, j)), "z")
    new = cell.compute(
        lambda t, b, j: (
            (1 - z[t, b, j]) * te.tanh(cell.X[t, b, 2, j] + r[t, b, j] * cell.product[t, b, 2, j])
            + z[t, b, j] * cell.h[t - 1, b, j]
        ),
        "new",
    )
    return cell.build([cell.h], [new], target)


def lstm(hidden: int, target: str = "cpu", batch: int | None = None, projects: bool = False) -> te.Function:
    """Two states, cells and outputs; gates in torch's order: input, forget, candidate, output."""
    cell = _Cell(4, hidden, batch, projects)
    c = te.placeholder(cell.sizes, name="c")
    new_c = cell.compute(
        lambda t, b, j: (
            te.sigmoid(cell.gate(1)(t, b, j)) * c[t - 1, b, j]
            + te.sigmoid(cell.gate(0)(t, b, j)) * te.tanh(cell.gate(2)(t, b, j))
        ),
        "new_c",
    )
    new_h = cell.compute(lambda t, b, j: te.sigmoid(cell.gate(3)(t, b, j)) * te.tanh(new_c[t, b, j]), "new_h")
    return cell.build([c, cell.h], [new_c, new_h], target)


# ---- the same in numpy -----------------------------------------------------------------------------------------


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


def _as_matrix(w: Array) -> Array:
    """The weights (gates, H, H) of all gates as one matrix (H, gates * H)."""
    return np.ascontiguousarray(w.transpose(1, 0, 2)).reshape(w.shape[1], -1)


def _gru_steps(out: Array, x: Array, w: Array) -> None:
    out[0] = 0
    matrix = _as_matrix(w)
    for t in range(1, len(x)):
        h = out[t - 1]
        p = (h @ matrix).reshape(x[t].shape)
        r, z = _sigmoid(p[:, 0] + x[t, :, 0]), _sigmoid(p[:, 1] + x[t, :, 1])
        out[t] = (1 - z) * np.tanh(x[t, :, 2] + r * p[:, 2]) + z * h


def _lstm_steps(cells: Array, out: Array, x: Array, *weights: Array) -> None:
    if len(weights) == 3:
        wx, w, bias = weights
        x = (x @ _as_matrix(wx)).reshape(*x.shape[:2], 4, -1) + bias
    else:
        (w,) = weights
    cells[0], out[0] = 0, 0
    matrix = _as_matrix(w)
    for t in range(1, len(x)):
        p = (out[t - 1] @ matrix).reshape(x[t].shape) + x[t]
        cells[t] = _sigmoid(p[:, 1]) * cells[t - 1] + _sigmoid(p[:, 0]) * np.tanh(p[:, 2])
        out[t] = _sigmoid(p[:, 3]) * np.tanh(cells[t])


_STEPS: dict[str, Callable[..., None]] = {
    "sum": _sum_steps, "tanh": _tanh_steps, "RNN": _rnn_steps, "GRU": _gru_steps, "LSTM": _lstm_steps,
}  # fmt: skip


# ---- cases -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case(base.Case):
    """One program on arrays of `shape`: (rows, columns), or (steps, batch, hidden) of a cell.

    Metric "us a step": the time of one step of a cell.
    """

    program: str  # "sum", "tanh", "RNN", "GRU" or "LSTM"
    shape: tuple[int, ...]
    threshold: float | None = None
    metric: str = "of copy"
    peers: PeerThresholds = ()
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def n_gates(self) -> int:
        return _N_GATES.get(self.program, 0)

    @property
    def name(self) -> str:
        if not self.on_cuda and self.n_gates:
            return f"te {self.program}, {self.shape[2]} hidden, batch {self.shape[1]}"
        words = "sum over columns" if self.on_cuda and not self.n_gates else self.program
        return f"te {words} ({sizes(self.shape, ', ', 0 if self.on_cuda else 10_000)})"

    @property
    def length(self) -> int:
        return self.shape[0]

    @property
    def family(self) -> str:
        return f"te {self.program} {self.shape[1:]}, {self.dtype}"

    @property
    def n_bytes(self) -> int:
        if not self.n_gates:
            return 8 * math.prod(self.shape)
        n_states, weights = 1 + (self.program == "LSTM"), self.n_gates * self.shape[2] ** 2
        n_inputs, n_weights = (1, 2) if self.on_cuda else (self.n_gates, 1)
        return 4 * (math.prod(self.shape) * (n_inputs + n_states) + n_weights * weights)

    def value(self, seconds: float) -> float | None:
        return seconds / self.length * 1e6 if self.metric == "us a step" else super().value(seconds)

    def steps(self, *arrays: Any) -> None:
        """The same program in numpy: fills its results, which come first."""
        _STEPS[self.program](*arrays)

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self, count, device)

    def function(self, arrays: Arrays) -> Callable[..., Any]:
        return _built(self.program, self.shape[1:], arrays.projects, arrays.target)


@cache
def _built(program: str, sizes: tuple[int, ...], projects: bool, target: str) -> te.Function:
    if program == "LSTM":
        return lstm(sizes[1], target, sizes[0] if projects else None, projects)
    if program in _N_GATES:
        return {"RNN": rnn, "GRU": gru}[program](sizes[1], target)
    return {"sum": cumulative_sum, "tanh": tanh_recurrence}[program](target)


class Arrays(base.Arrays):
    """Inputs and results, which every call overwrites."""

    def __init__(self, case: Case, count: int | None = None, device: str | None = None) -> None:
        self.case, self.source = case, Source(case, device)
        self.target = "cuda" if self.source.device == "cuda" else "cpu"
        self.projects = case.on_cuda and case.n_gates > 0
        n_sets = self.source.n_sets(case, count)
        steps = case.shape[0] + self.projects  # the results of torch's cell begin after the zeros
        self.result_shape = (steps, *case.shape[1:])
        weights = self._weights() if case.n_gates else ()
        self.inputs = [(self._numbers(), *weights) for _ in range(n_sets)]
        self.results = [self.new_results() for _ in range(n_sets)]

    def _numbers(self) -> Any:
        if self.source.is_numpy:
            shape = (*self.case.shape[:2], self.case.n_gates, self.case.shape[2]) if self.case.n_gates else None
            return self.source.normal(shape or self.case.shape)
        return self.source.uniform(self.result_shape, low=-0.5, high=0.5)

    def _weights(self) -> tuple[Any, ...]:
        hidden, n_gates = self.case.shape[2], self.case.n_gates
        square, bound = (n_gates, hidden, hidden), hidden**-0.5
        if not self.projects:
            return ((self.source.normal(square) * bound).astype("float32"),)
        numbers = partial(self.source.uniform, low=-bound, high=bound)  # as torch initialises a cell
        return numbers(square), numbers(square), numbers((n_gates, hidden))

    def new_results(self, dtype: str = "float32") -> tuple[Any, ...]:
        """Zeros for each result of the program."""
        count = 1 + (self.case.program == "LSTM")
        zeros = (np.zeros(self.result_shape, dtype) for _ in range(count))
        return tuple(zeros if self.source.is_numpy else map(self._to_device, zeros))

    def _to_device(self, array: Any) -> Any:
        return self.source.xp.from_numpy(array).to(self.source.device)

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        if not isinstance(function, te.Function):
            return super().call(function)
        threads = {"n_threads": n_threads()} if self.source.is_numpy else {}

        def run(i: int) -> Any:
            function(*self.inputs[i], *self.results[i], **threads)
            return self.results[i][-1]

        return run

    def error(self, answer: Any) -> float:
        """The error relative to the largest number of the reference; of sums, that of some columns."""
        inputs = [np.asarray(as_numpy(array), np.float64) for array in self._examined(self.inputs[0])]
        (actual,) = self._examined((answer,))
        shape = np.shape(inputs[0]) if not self.case.n_gates else self.result_shape
        expected = [np.zeros(shape) for _ in self.results[0]]
        self.case.steps(*expected, *inputs)
        last = expected[-1][len(expected[-1]) - len(actual) :]  # torch's cells do not return the zeros
        if last.shape != tuple(actual.shape):
            return math.inf
        difference = np.abs(as_numpy(actual) - last).max()
        return float(difference / max(1.0, np.abs(last).max()))

    def _examined(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if self.case.n_gates:
            return arrays
        stride = max(1, self.case.shape[1] // _EXAMINED)
        return [array[:, ::stride] for array in arrays]

    def allowed(self) -> float:
        return 1e-2 if self.projects else 4e-4  # tensor cores round the inputs of products

    def passes(self, n_threads: int) -> tuple[dict[str, Callable[[], object]], float]:
        if self.case.metric != "of copy":
            return {}, 1.0
        return timing.copiers(self.inputs[0][0], self.new_results()[0], n_threads), 1.0


_CELL = (50, 256, 128)
PROGRAMS = (
    Case("sum", (10, 1024), 10.0, "us"),
    Case("sum", (1024, 1024), 0.9, peers=(("numpy", None), ("jax.lax.scan", None))),
    Case("sum", (100_000, 16), 0.83, peers=(("numpy", None), ("jax.lax.scan", None))),
    Case("tanh", (1000, 4096), peers=(("numba", 6.0), ("numpy", 20.0), ("jax.lax.scan", None))),
    Case("RNN", _CELL, None, "ms", peers=(("numpy", 0.67),)),
    Case("GRU", _CELL, None, "ms", peers=(("numpy", 1.0),)),
    Case("LSTM", _CELL, None, "ms", peers=(("numpy", 1.0),)),
)


def cases(quick: bool = False, device: str = "cpu") -> list[base.Case]:
    """Every case; `quick`: on CUDA without large arrays, and one build. None without llvmlite."""
    try:
        import llvmlite  # noqa: F401  # whether it is installed
    except ImportError:
        return []
    if device == "cpu":
        return [*PROGRAMS, *builds(quick)]
    peers = (("a loop in torch", 5.0), ("torch.nn.LSTM", 1.0))
    every = [
        Case("sum", (1024, 1024), 0.5, device="cuda"),
        Case("sum", (16384, 65536), 0.8, device="cuda"),
        Case("LSTM", (1000, 64, 128), 2.5, "us a step", peers, "cuda"),
        Case("LSTM", (200, 1024, 128), 16.0, "us a step", peers, "cuda"),
    ]
    return [case for case in every if not quick or case.n_bytes < 1 << 28]


# ---- builds ----------------------------------------------------------------------------------------------------

_BUILD = """
import sys, time
sys.path.insert(0, {folder!r})
import numpy, llvmlite.binding
from upsweep import te
from upsweep_bench import te_programs as programs
if programs.tanh_recurrence()(numpy.zeros((2, 2), "float32")).any():
    raise AssertionError
times, build = [], te.build
def timed(*arguments):
    begin = time.perf_counter()
    result = build(*arguments)
    times.append(time.perf_counter() - begin)
    return result
te.build = timed
programs.{call}
print(1e3 * times[0])
"""
_BUILDS = {"cumulative_sum": "cumulative_sum()", "lstm": "lstm(128)"}


def build_milliseconds(name: str, from_disk: bool, tries: int = 4) -> float:
    """The fastest of several builds of a program in new processes, with the disk cache or without."""
    code = _BUILD.format(folder=str(Path(__file__).parents[1]), call=_BUILDS[name])
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "UPSWEEP_CACHE_DIR": folder if from_disk else ""}
        times = []
        for _ in range(tries + from_disk):  # the first of them fills the cache
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            times.append(float(done.stdout))
    return min(times[from_disk:])


def builds(quick: bool = False) -> list[Direct]:
    """The builds of programs that no cache holds, and of those on disk."""

    def run(name: str, from_disk: bool) -> tuple[float, float, str]:
        milliseconds = build_milliseconds(name, from_disk, tries=1 if quick else 4)
        return milliseconds / 1e3, milliseconds, ""

    return [
        Direct(
            f"te build of {name}, {'from the disk' if from_disk else 'new'}", "float32", "ms",
            10.0 if from_disk else 150.0, partial(run, name, from_disk),
        )
        for name in (("cumulative_sum",) if quick else tuple(_BUILDS)) for from_disk in (False, True)
    ]  # fmt: skip
