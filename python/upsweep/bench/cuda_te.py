"""Programs of te on CUDA: sums over columns beside a copy of the same bytes, an LSTM beside torch's.

Each answer is compared with float64, or with torch's own cell, before it is timed. An LSTM's figure is the time of
a step; its rivals are a step-by-step loop of torch's operations, which launches some kernels a step, and
torch.nn.LSTM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from upsweep import te
from upsweep.bench import cuda_beside
from upsweep.bench import cuda_harness as harness
from upsweep.bench.cuda_beside import OURS, WrongResult, release_memory
from upsweep.bench.cuda_harness import Subject
from upsweep.bench.cuda_te_cases import Case
from upsweep.bench.report import Row

__all__ = ["Tensors", "WrongResult", "check", "columns", "lstm", "measure_case", "release_memory"]

_ROUNDS = 15
_LOOP, _CUDNN = "a loop in torch", "torch.nn.LSTM"


@cache
def columns(target: str = "cuda") -> te.Function:
    """The sum over the rows before."""
    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    scan = te.scan(init, update, state, inputs=[X])
    return te.build(te.create_schedule(scan.op), [X, scan], target)


@cache
def lstm(batch: int, hidden: int, target: str = "cuda") -> te.Function:
    """A function of x (T + 1, batch, hidden), Wx, Wh (4, hidden, hidden) and a bias: cells and outputs.

    The first of these are 0. Gates come as torch's do: input, forget, candidate, output.
    """
    T, B, H = te.var("T"), batch, hidden
    X, bias = te.placeholder((T, B, H), name="X"), te.placeholder((4, H), name="bias")
    Wx, Wh = te.placeholder((4, H, H), name="Wx"), te.placeholder((4, H, H), name="Wh")
    c, h = te.placeholder((T, B, H), name="c"), te.placeholder((T, B, H), name="h")
    d, k = te.reduce_axis((0, H), "d"), te.reduce_axis((0, H), "k")
    of_x = te.compute((T, B, 4, H), lambda t, b, g, j: te.sum(X[t, b, d] * Wx[g, d, j], axis=d), name="of_x")
    of_h = te.compute((T, B, 4, H), lambda t, b, g, j: te.sum(h[t - 1, b, k] * Wh[g, k, j], axis=k), name="of_h")
    gates = te.compute(
        (T, B, 4, H), lambda t, b, g, j: of_x[t, b, g, j] + of_h[t, b, g, j] + bias[g, j], name="gates"
    )
    new_c = te.compute(
        (T, B, H),
        lambda t, b, j: (
            te.sigmoid(gates[t, b, 1, j]) * c[t - 1, b, j]
            + te.sigmoid(gates[t, b, 0, j]) * te.tanh(gates[t, b, 2, j])
        ),
        name="new_c",
    )
    new_h = te.compute(
        (T, B, H), lambda t, b, j: te.sigmoid(gates[t, b, 3, j]) * te.tanh(new_c[t, b, j]), name="new_h"
    )
    zeros = [te.compute((1, B, H), lambda *_: 0.0) for _ in range(2)]
    cells, outputs = te.scan(zeros, [new_c, new_h], [c, h], inputs=[X, bias, Wx, Wh])
    return te.build(te.create_schedule(outputs.op), [X, Wx, Wh, bias, cells, outputs], target)


class Tensors:
    """The sets of arrays of a case, and its calls on them."""

    def __init__(self, case: Case, count: int | None = None, device: str = "cuda") -> None:
        self.case, self.target = case, "cuda" if device == "cuda" else "cpu"
        self.n_sets = harness.n_sets(case.n_bytes) if count is None else count
        generator = torch.Generator(device).manual_seed(0)

        def numbers(*shape: int) -> Any:
            return torch.rand(shape, generator=generator, device=device) - 0.5

        if case.program == "columns":
            self.inputs: list[Any] = [(numbers(*case.shape),) for _ in range(self.n_sets)]
            self.outputs: list[Any] = [(torch.empty_like(x),) for (x,) in self.inputs]
            return
        steps, batch, hidden = case.shape
        self.cell: Any = torch.nn.LSTM(hidden, hidden).to(device)
        with torch.no_grad():
            weights: list[Any] = [weight.detach() for weight in self.cell.parameters()]
            of_x, of_h, b_x, b_h = weights
            turned = [w.reshape(4, hidden, hidden).transpose(1, 2).contiguous() for w in (of_x, of_h)]
            bias = (b_x + b_h).reshape(4, hidden)
        self.inputs = [(numbers(steps + 1, batch, hidden), *turned, bias) for _ in range(self.n_sets)]
        self.outputs = [(torch.empty_like(x[0]), torch.empty_like(x[0])) for x in self.inputs]

    def ours(self, i: int) -> Any:
        """upsweep's call on the set of arrays with a given number."""
        run = columns(self.target) if self.case.program == "columns" else lstm(*self.case.shape[1:], self.target)
        run(*self.inputs[i], *self.outputs[i])
        return self.outputs[i][-1]

    def rivals(self) -> dict[str, Callable[[int], Any]]:
        """Other ways to the same answer."""
        if self.case.program == "columns":
            return {}
        return {_LOOP: self._loop, _CUDNN: self._cudnn}

    def _cudnn(self, i: int) -> Any:
        with torch.no_grad():
            return self.cell(self.inputs[i][0][1:])[0]

    def _loop(self, i: int) -> Any:
        """What a user writes who has no cell: two matrix products and some operations a step."""
        x, wx, wh, bias = self.inputs[i]
        hidden = self.case.shape[2]
        both = [w.transpose(0, 1).reshape(hidden, 4 * hidden) for w in (wx, wh)]
        of_x = x[1:] @ both[0] + bias.reshape(-1)
        h = c = torch.zeros_like(x[0])
        found = []
        for t in range(len(of_x)):
            gates: list[Any] = list(torch.addmm(of_x[t], h, both[1]).chunk(4, dim=1))
            entrance, forget, candidate, output = gates
            c = torch.sigmoid(forget) * c + torch.sigmoid(entrance) * torch.tanh(candidate)
            h = torch.sigmoid(output) * torch.tanh(c)
            found.append(h)
        return torch.stack(found)

    def error(self, answer: Any) -> float:
        """The largest error of an answer for the first set."""
        if self.case.program == "columns":
            some = slice(None, None, max(1, self.case.shape[1] // 64))
            exact = torch.cumsum(self.inputs[0][0][:, some].double(), 0)
            return float((answer[:, some] - exact).abs().max())
        return float((answer[1:] - self._cudnn(0)).abs().max())


def check(case: Case, tensors: Tensors) -> None:
    """Raise WrongResult unless upsweep's answer is right."""
    error = tensors.error(tensors.ours(0))
    allowed = 1e-2 if case.program == "lstm" else 1e-5 * case.shape[0]  # tensor cores round torch's products
    if not error <= allowed:
        raise WrongResult(f"{case.name}, {case.dtype}: error {error:.2g}, at most {allowed:.2g} allowed")


def measure_case(case: Case, rounds: int = _ROUNDS, warmup: int = 2) -> list[Row]:
    """Check and time one case: its own row, then one for each rival.

    Raises
    ------
    WrongResult
        Where upsweep's own answer is wrong.
    """
    tensors = Tensors(case)
    check(case, tensors)
    methods = {OURS: harness.prepare(Subject(tensors.ours, tensors.n_sets))}
    if case.program == "columns":
        methods["copy"] = harness.prepare(harness.copy_of(case.n_bytes))
    for name, call in tensors.rivals().items():
        methods[name] = harness.prepare(Subject(call, tensors.n_sets, capturable=False))
    seconds = harness.measure(methods, rounds, warmup).seconds
    ours = seconds[OURS]
    about: dict[str, Any] = {"dtype": case.dtype, "length": case.length, "family": case.family}
    p90 = harness.quantile(ours, 0.9)
    if case.program == "columns":
        note = f"copy {harness.median(seconds['copy']) * 1e3:.4f} ms"
        return [
            Row(
                case.name, seconds=harness.median(ours), bar=case.bar, unit="of copy", n_bytes=case.n_bytes,
                note=note, method=OURS, p90=p90, **about, **cuda_beside.ratio(seconds["copy"], ours),
            )
        ]  # fmt: skip
    step = harness.median(ours) / case.length * 1e6
    rows = [
        Row(
            f"{case.name}, a step", seconds=harness.median(ours), figure=step, unit="us", bar=case.bar,
            method=OURS, p90=p90, **about,
        )
    ]  # fmt: skip
    for name in tensors.rivals():
        rows.append(Row(
            f"{name} against {case.name}", seconds=harness.median(seconds[name]), unit="x", method=name,
            bar=5.0 if name == _LOOP else None, note="in a row, launches included", **about,
            **cuda_beside.ratio(seconds[name], ours),
        ))  # fmt: skip
    return rows
