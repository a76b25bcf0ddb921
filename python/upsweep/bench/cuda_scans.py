"""Scans of CUDA tensors: each case's answer checked in float64, then timed beside a copy and the peers.

A wrong answer of upsweep raises `WrongResult`: nothing is timed. A peer that raises or answers wrongly gets a
row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

import upsweep
from upsweep.bench import cuda_harness as harness
from upsweep.bench import cuda_oracle as oracle
from upsweep.bench.cuda_beside import (
    OURS,
    ContextLost,
    WrongResult,
    measure,
    peer_rows,
    ratio,
    release_memory,
    title,
)
from upsweep.bench.cuda_cases import Case
from upsweep.bench.cuda_harness import Subject
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


class Tensors:
    """The sets of arrays of a case, all positive, and its calls on them."""

    def __init__(self, case: Case, count: int | None = None, device: str = "cuda") -> None:
        self.case, self.n_sets = case, harness.n_sets(case.n_bytes) if count is None else count
        random = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, case.dtype)

        def numbers(low: float, high: float) -> list[Any]:
            shape, kinds = case.shape, {"generator": random, "device": device}
            return [(low + (high - low) * torch.rand(shape, **kinds)).to(dtype) for _ in range(self.n_sets)]

        # fpscan's gates: a decay in which thousands of steps still count.
        self.gates = numbers(0.99, 1.0) if case.gated else []
        self.tokens = numbers(0.5, 1.0)
        self.upstream = numbers(0.5, 1.0) if case.gradients else []
        for tensor in [*self.gates, *self.tokens] if case.gradients else []:
            tensor.requires_grad_()

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        """The function as the call that is timed, on the set of arrays with a given number."""
        if self.case.gradients:
            return lambda i: torch.autograd.grad(function(*self.inputs(i)), self.inputs(i), self.upstream[i])
        return lambda i: function(*self.inputs(i))

    def subject(self, function: Callable[..., Any], capturable: bool = True) -> Subject:
        """The call as it is timed. Launching a derivative costs the host so much that it goes into a graph."""
        return Subject(self.call(function), self.n_sets, capturable, launches_cost=self.case.gradients)

    def inputs(self, i: int) -> tuple[Any, ...]:
        return (self.gates[i], self.tokens[i]) if self.case.gated else (self.tokens[i],)

    def error(self, answer: Any) -> float:
        """The largest relative error of an answer for the first set."""
        case = self.case
        if case.gradients:
            return oracle.gradient_error(answer, self.gates[0], self.tokens[0], self.upstream[0])
        number = 1.0 if case.operation == "cumulative_sum" else case.gamma
        factor = self.gates[0] if case.gated else number
        if case.carry:
            return oracle.carry_error(answer, factor, self.tokens[0], case.axis)
        return oracle.scan_error(answer, factor, self.tokens[0], case.axis, case.window)

    def eps(self) -> float:
        return float(torch.finfo(self.tokens[0].dtype).eps)


def function_of(case: Case) -> Callable[..., Any]:
    """The call of upsweep that a user would write."""
    axis: dict[str, Any] = {} if case.axis == -1 else {"axis": case.axis}
    if case.carry:
        factor = {"gamma": case.gamma} if case.operation == "discounted_cumsum" else {}
        return partial(getattr(upsweep, f"{case.operation}_carry"), **factor, **axis)
    if case.gated:
        return partial(upsweep.linear_recurrence, **axis)
    if case.operation == "cumulative_sum":
        return partial(upsweep.cumulative_sum, **axis)
    window: dict[str, Any] = {} if case.window is None else {"window": case.window}
    return partial(upsweep.discounted_cumsum, gamma=case.gamma, **axis, **window)


def check(case: Case, tensors: Tensors) -> None:
    """Raise WrongResult unless upsweep's answer is right to rounding."""
    error = tensors.error(tensors.call(function_of(case))(0))
    # Rounded once: half an eps. A gradient of gates is a product of two numbers that were rounded.
    allowed = (3 if case.gradients else 1) * tensors.eps()
    if not error <= allowed:
        raise WrongResult(f"{case.name}, {case.dtype}: relative error {error:.2g}, at most {allowed:.2g} allowed")


def measure_case(case: Case, rounds: int = _ROUNDS, warmup: int = 2) -> list[Row]:
    """Check and time one case: its own row, then one for each peer.

    Raises
    ------
    WrongResult
        Where upsweep's own answer is wrong.
    NotImplementedError
        Where upsweep has no such call on CUDA.
    ContextLost
        Where a peer has made the device unusable.
    """
    tensors = _checked(case)
    if case.figure == "us host":
        call = partial(function_of(case), *tensors.inputs(0))
        return rows_from_samples(case, {OURS: harness.host_seconds(call, rounds)}, {})
    versus = None
    if case.versus is not None:
        other = Case(case.operation, case.versus, case.dtype)
        versus = _checked(other), function_of(other)
    return rows_from_samples(case, *measure(case, (tensors, function_of(case)), versus, rounds, warmup))


def _checked(case: Case) -> Tensors:
    tensors = Tensors(case)
    check(case, tensors)
    return tensors


def rows_from_samples(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> list[Row]:
    """A case's row and those of its peers, from seconds a call; `notes` say what was not timed, and why."""
    return list(_rows(case, seconds, notes))


def _rows(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> Iterator[Row]:
    ours = seconds[OURS]
    about: dict[str, Any] = {"dtype": case.dtype, "length": case.length, "family": case.family}
    values: dict[str, Any] = {"unit": "us", "figure": harness.median(ours) * 1e6}
    note = [notes[OURS]] if OURS in notes else []
    if case.figure == "of copy":
        values = {"unit": "of copy", "n_bytes": case.n_bytes, **ratio(seconds["copy"], ours)}
        note.insert(0, f"copy {harness.median(seconds['copy']) * 1e3:.4f} ms")
    elif case.versus is not None:
        elements = Case(case.operation, case.versus).n_elements
        values = {"unit": "x", **ratio(seconds["versus"], ours, case.n_elements / elements)}
    yield Row(
        case.name, seconds=harness.median(ours), bar=case.bar, note="; ".join(note), method=OURS,
        p90=harness.quantile(ours, 0.9), **about, **values,
    )  # fmt: skip
    yield from peer_rows(case, seconds, notes, about)
