"""Scans by an update of CUDA tensors: each case's answer checked, then timed beside a copy or `linear_recurrence`.

The answer is held against a loop over time in float64, of some columns and the first steps, and of affine updates
of long lines against the recurrence that they are. A wrong one raises `WrongResult`: nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

import upsweep
from upsweep.bench import cuda_beside
from upsweep.bench import cuda_harness as harness
from upsweep.bench.cuda_beside import OURS, ContextLost, WrongResult, release_memory, title
from upsweep.bench.cuda_harness import Subject
from upsweep.bench.cuda_userscan_cases import UPDATES, Case
from upsweep.bench.report import Row

__all__ = [
    "OURS",
    "ContextLost",
    "Tensors",
    "WrongResult",
    "check",
    "measure_case",
    "release_memory",
    "rows_from_samples",
    "title",
]

_ROUNDS = 15
_STEPS, _COLUMNS = 3000, 512  # that the loop is asked for
_ALLOWED = {"float32": 2e-5, "float64": 1e-10, "float16": 2e-3}


class Tensors:
    """The sets of arrays of a case and its calls on them."""

    def __init__(self, case: Case, count: int | None = None, device: str = "cuda") -> None:
        self.case, self.n_sets = case, harness.n_sets(case.n_bytes) if count is None else count
        generator = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case.dtype)

        def numbers() -> Any:
            tensor = torch.rand(case.shape, generator=generator, device=device).to(dtype)
            return tensor.requires_grad_() if case.gradients else tensor

        self.inputs = [tuple(numbers() for _ in range(case.n_inputs)) for _ in range(self.n_sets)]

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        """The function as the call that is timed, on the set of arrays with a given number."""
        if not self.case.gradients:
            return lambda i: function(*self.inputs[i])

        def forward_and_backward(i: int) -> Any:
            y = function(*self.inputs[i])
            return torch.autograd.grad(y, self.inputs[i], y.detach())

        return forward_and_backward

    def subject(self, function: Callable[..., Any]) -> Subject:
        return Subject(self.call(function), self.n_sets, launches_cost=self.case.gradients)


def function_of(case: Case) -> Callable[..., Any]:
    """The call of upsweep that is measured."""
    init = (0.0,) * case.n_states if case.n_states > 1 else 0.0

    def run(*xs: Any) -> Any:
        return upsweep.scan(UPDATES[case.update], init, xs if len(xs) > 1 else xs[0], axis=case.axis)

    return run


def known(case: Case) -> Callable[..., Any]:
    """The function that a user would have for as much."""
    if case.n_inputs == 2:
        return partial(upsweep.linear_recurrence, axis=case.axis)
    return partial(upsweep.discounted_cumsum, gamma=0.9, axis=case.axis)


def _loop(case: Case, inputs: tuple[Any, ...]) -> Any:
    """The outputs of some columns and steps, step by step in float64; with derivatives where the case has them."""
    along = [
        x.double().movedim(case.axis, 0)[:_STEPS].reshape(min(case.length, _STEPS), -1)[:, :_COLUMNS]
        for x in inputs
    ]
    zero = torch.zeros_like(along[0][0])
    state: Any = (zero,) * case.n_states if case.n_states > 1 else zero
    outputs = []
    for step in zip(*along):
        result = _STEP[case.update](state, step if len(step) > 1 else step[0])
        state, output = result if case.n_states > 1 else (result, result)
        outputs.append(output)
    return torch.stack(outputs)


# The updates in torch's operations, where numpy's do not take tensors.
_STEP: dict[str, Callable[[Any, Any], Any]] = {
    **UPDATES,
    "tanh": lambda s, x: torch.tanh(s + x),
    "decay": lambda s, x: torch.exp(-x[0]) * s + (1 - x[0]) * x[1],
}

# The same of whole lines, in float64.
_WHOLE: dict[str, Callable[..., Any]] = {
    "average": lambda axis, x: upsweep.discounted_cumsum(0.1 * x, 0.9, axis=axis),
    "mixture": lambda axis, g, x: upsweep.linear_recurrence(g, (1 - g) * x, axis=axis),
}


def error(case: Case, tensors: Tensors) -> float:
    """The largest error of the answer for the first set, relative to numbers above 1."""
    inputs = tensors.inputs[0]
    with torch.no_grad():
        answer = function_of(case)(*inputs)
        expected: Any
        if case.update in _WHOLE and case.axis == len(case.shape) - 1:
            whole = _WHOLE[case.update](case.axis, *(x.double() for x in inputs))
            expected = whole.movedim(case.axis, 0).reshape(case.length, -1)[:, :_COLUMNS]
        else:
            expected = _loop(case, inputs)
        mine = answer.movedim(case.axis, 0)
        mine = mine.reshape(mine.shape[0], -1)[: expected.shape[0], :_COLUMNS].reshape(expected.shape).double()
        apart: Any = (mine - expected).abs() / expected.abs().clamp(min=1)
        return float(apart.max())


def check(case: Case, tensors: Tensors) -> None:
    """Raise WrongResult unless upsweep's answer is right to what rounding at each step adds up to."""
    found, allowed = error(case, tensors), _ALLOWED[case.dtype]
    if not found <= allowed:
        raise WrongResult(f"{case.name}, {case.dtype}: error {found:.2g}, at most {allowed:.2g} allowed")


def measure_case(case: Case, rounds: int = _ROUNDS, warmup: int = 2) -> list[Row]:
    """Check and time one case.

    Raises
    ------
    WrongResult
        Where upsweep's own answer is wrong.
    """
    tensors = Tensors(case)
    check(case, tensors)
    versus = None if case.figure == "of copy" else (tensors, known(case))
    ours = tensors, function_of(case)
    return rows_from_samples(case, *cuda_beside.measure(case, ours, versus, rounds, warmup))


def rows_from_samples(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> list[Row]:
    """A case's row from seconds a call; `notes` say what there is to say of them."""
    return list(_rows(case, seconds, notes))


def _rows(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> Iterator[Row]:
    ours, yardstick = seconds[OURS], "copy" if case.figure == "of copy" else "versus"
    beside = yardstick if yardstick == "copy" else known(case).func.__name__  # type: ignore[attr-defined]  # a partial
    note = [f"{beside} {harness.median(seconds[yardstick]) * 1e3:.4f} ms", notes.get(OURS, "")]
    about: dict[str, Any] = {"dtype": case.dtype, "length": case.length, "family": case.family}
    yield Row(
        case.name, seconds=harness.median(ours), bar=case.bar, note="; ".join(filter(None, note)), method=OURS,
        p90=harness.quantile(ours, 0.9), n_bytes=case.n_bytes, unit="of copy" if yardstick == "copy" else "x",
        **about, **cuda_beside.ratio(seconds[yardstick], ours),
    )  # fmt: skip
    yield from cuda_beside.peer_rows(case, seconds, notes, about)
