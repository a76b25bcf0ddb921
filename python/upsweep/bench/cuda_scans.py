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
from upsweep.bench import cuda_peers
from upsweep.bench.cuda_cases import Case
from upsweep.bench.cuda_harness import Prepared, Subject
from upsweep.bench.report import Row

__all__ = [
    "OURS",
    "ContextLost",
    "WrongResult",
    "in_turns",
    "measure_case",
    "peer_rows",
    "peer_subject",
    "ratio",
    "release_memory",
    "rows_from_samples",
    "title",
]

OURS = "upsweep"
_ROUNDS = 15


class WrongResult(Exception):
    """What upsweep computed is wrong."""


class ContextLost(Exception):
    """A peer left the device in a state in which nothing more can be run."""


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
        return oracle.scan_error(answer, factor, self.tokens[0], case.axis, case.window)

    def eps(self) -> float:
        return float(torch.finfo(self.tokens[0].dtype).eps)


def function_of(case: Case) -> Callable[..., Any]:
    """The call of upsweep that a user would write."""
    axis: dict[str, Any] = {} if case.axis == -1 else {"axis": case.axis}
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


def peer_subject(name: str, case: Any, tensors: Any) -> Prepared | str | None:
    """The peer ready to be timed, or why it is not; None: not installed."""
    try:
        function = cuda_peers.bind(name, case)
        if function is None:
            return None
        call = tensors.call(function)
        error = tensors.error(call(0))
        # Other people's sums are in float32, or in bfloat16; what is refused is what nobody would call an answer.
        allowed = max(1e-3, 8 * tensors.eps())
        if not error <= allowed:
            return f"wrong, not timed: relative error {error:.2g}"
        return harness.prepare(tensors.subject(function, cuda_peers.PEERS[name].capturable))
    except cuda_peers.Refused as error_:
        return f"not timed: {error_}"
    except Exception as error_:  # whatever another package raises must not end the run; its row says it
        reason = f"raised, not timed: {type(error_).__name__}: {str(error_).strip().partition(chr(10))[0][:120]}"
        _settle(name, reason)
        return reason


def _settle(name: str, reason: str) -> None:
    """Take errors of the device that are still to be told; raise ContextLost where they do not end."""
    for _ in range(2):
        try:
            torch.cuda.synchronize()
            return
        except RuntimeError as error:
            reason = str(error)
    raise ContextLost(f"{name}: {reason}")


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
    tensors = Tensors(case)
    check(case, tensors)
    if case.figure == "us host":
        call = partial(function_of(case), *tensors.inputs(0))
        return rows_from_samples(case, {OURS: harness.host_seconds(call, rounds)}, {})
    methods = {OURS: harness.prepare(tensors.subject(function_of(case)))}
    if case.figure == "of copy":
        methods["copy"] = harness.prepare(harness.copy_of(case.n_bytes))
    if case.versus is not None:
        other = Case(case.operation, case.versus, case.dtype)
        others = Tensors(other)
        check(other, others)
        methods["versus"] = harness.prepare(others.subject(function_of(other)))
    return rows_from_samples(case, *in_turns(case, tensors, methods, rounds, warmup))


def in_turns(
    case: Any, tensors: Any, methods: dict[str, Prepared], rounds: int, warmup: int
) -> tuple[Mapping[str, list[float]], dict[str, str]]:
    """Seconds a call of these methods and of the case's peers, which take turns; and what there is to say of them,
    why they were not timed among it."""
    notes: dict[str, str] = {}
    for name, _ in case.peers:
        peer = peer_subject(name, case, tensors)
        if isinstance(peer, Prepared):
            methods[name] = peer
        elif peer is not None:
            notes[name] = peer
    samples = harness.measure(methods, rounds, warmup)
    notes.update({name: method.note for name, method in methods.items() if method.note})
    return samples.seconds, notes


def rows_from_samples(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> list[Row]:
    """A case's row and those of its peers, from seconds a call; `notes` say what was not timed, and why."""
    return list(_rows(case, seconds, notes))


def title(peer: str, case: Any) -> str:
    """What the row of a peer is called."""
    return f"{peer} against {case.name}"


def release_memory() -> None:
    """Give the memory that torch keeps back to the device, for other processes."""
    torch.cuda.empty_cache()


def ratio(theirs: list[float], ours: list[float], scale: float = 1.0) -> dict[str, Any]:
    """The ratio of medians, and the median of the rounds' own ratios."""
    each = [a / b * scale for a, b in zip(theirs, ours)]
    return {"figure": harness.median(theirs) / harness.median(ours) * scale, "median": harness.median(each)}


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


def peer_rows(
    case: Any, seconds: Mapping[str, list[float]], notes: Mapping[str, str], about: dict[str, Any]
) -> Iterator[Row]:
    """The rows of a case's peers."""
    for name, bar in case.peers:
        about.update(unit="x", bar=bar, note=notes.get(name, ""), method=name)
        if name in seconds:
            yield Row(
                title(name, case), seconds=harness.median(seconds[name]),
                p90=harness.quantile(seconds[name], 0.9), **about, **ratio(seconds[name], seconds[OURS]),
            )  # fmt: skip
        elif name in notes:
            yield Row(title(name, case), seconds=None, figure=None, **about)
