"""Scans by known recurrences: cases, inputs, error.

A discounted or plain sum is compared with copies, a gated recurrence on the CPU with a + b -> c, on CUDA with a
copy of as many bytes. The minimal bytes: a gated recurrence reads two arrays and writes one, a sum reads one and
writes one; an aggregate (`carry`) writes none; ``reset=`` reads one byte an element. Forward and backward move
eight arrays: the forward pass three, the backward pass five (it reads the gradient, the gates and the states,
and writes two gradients).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import upsweep
from upsweep import reference
from upsweep.bench import timing

from upsweep_bench import case as base
from upsweep_bench.case import Direct, PeerThresholds, Source, n_threads, ordered, sizes

__all__ = ["BASELINE", "GATED_PEERS", "Arrays", "Case", "cases", "small_calls"]

ITEMSIZES = {"int64": 8, "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
GATED_PEERS = ("fpscan", "accelerated-scan", "accelerated-scan Triton", "associative_scan")
BASELINE = "Hillis-Steele"  # in plain torch operations, as in fpscan's benchmark

_GATED, _DISCOUNTED, _SUM = "linear_recurrence", "discounted_cumsum", "cumulative_sum"
_LINE = (1, 10_000_000)
_MODEL = (8, 1536)  # batch and width of a language model, in fpscan's and accelerated-scan's figures
_MODEL_ELEMENTS = 8 * 1536 * 2048
_QUICK_ELEMENTS = 1 << 24
_EXAMINED = 300  # steps and lines that the CPU's results are compared with the reference for


@dataclass(frozen=True)
class Case(base.Case):
    """One call to time. Metrics besides `base.Case`'s: "per element", the time of an element in the shape
    `versus_shape` over that in `shape`; "of normal data", the time with the usual data over that with `data`.
    """

    operation: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    threshold: float | None = None
    metric: str = "of copy"
    axis: int = -1
    gamma: float = 0.99
    window: int | None = None
    reverse: bool = False
    exclusive: bool = False
    reset: bool = False
    data: str = "normal"  # or "impulse": a one, then zeros
    gradients: bool = False
    carry: bool = False  # the aggregate of the block instead of its states
    peers: PeerThresholds = ()
    versus_shape: tuple[int, ...] | None = None
    device: str = "cpu"

    @property
    def gated(self) -> bool:
        return self.operation == _GATED

    @property
    def name(self) -> str:
        words = [self._function_name, sizes(self.shape)] + [f"axis {self.axis}"] * (self.axis != -1)
        words += ["forward and backward"] * self.gradients
        words += ["reverse"] * self.reverse + ["exclusive"] * self.exclusive + ["reset="] * self.reset
        words += [f"window={self.window}"] * (self.window is not None)
        words += [f"gamma={self.gamma:g}"] * (self.gamma != 0.99)
        words += ["impulse then zeros / normal"] * (self.data == "impulse")
        words += ["device time"] * (self.metric == "us") + ["host time"] * (self.metric == "us host")
        words += [f"per element of {sizes(self.versus_shape)}"] if self.versus_shape else []
        return " ".join(words)

    @property
    def _function_name(self) -> str:
        return f"{self.operation}_carry" if self.carry else self.operation

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @property
    def family(self) -> str:
        shape = list(self.shape)
        shape[self.axis] = 0
        words = [self._function_name, " x ".join(f"{size:,}" if size else "n" for size in shape)]
        words += ["forward and backward"] * self.gradients + [f"window={self.window}"] * (self.window is not None)
        return f"{' '.join(words)}, {self.dtype}"

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        arrays = 8 if self.gradients else (3 if self.gated else 2) - self.carry
        return self.n_elements * (ITEMSIZES[self.dtype] * arrays + self.reset)

    @property
    def pass_name(self) -> str | None:
        adds = self.gated and not self.on_cuda
        return "add" if adds and self.metric == "of copy" else super().pass_name

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self, count, device)

    def function(self, arrays: Arrays) -> Callable[..., Any]:
        keywords: dict[str, Any] = {} if self.axis == -1 else {"axis": self.axis}
        if self.operation == _DISCOUNTED:
            keywords["gamma"] = self.gamma
        if not self.carry:
            keywords |= {name: True for name in ("reverse", "exclusive") if getattr(self, name)}
            keywords |= {"window": self.window} if self.window is not None else {}
            keywords |= arrays.keywords
        return partial(getattr(upsweep, self._function_name), **keywords)

    def versus(self, arrays: Arrays) -> tuple[base.Arrays, Callable[..., Any]] | None:
        if self.versus_shape is not None:
            other = Case(self.operation, self.versus_shape, self.dtype, device=self.device)
        elif self.data == "impulse":
            other = replace(self, data="normal", metric="of copy")
        else:
            return None
        inputs = other.arrays(device=arrays.source.device)
        return inputs, other.function(inputs)

    @property
    def versus_label(self) -> str:
        return "normal data" if self.versus_shape is None else sizes(self.versus_shape)

    @property
    def versus_scale(self) -> float:
        return 1.0 if self.versus_shape is None else self.n_elements / math.prod(self.versus_shape)


class Arrays(base.Arrays):
    """Gates and tokens, all positive so that errors can be relative. On the CPU results are written to `out`."""

    def __init__(self, case: Case, count: int | None = None, device: str | None = None) -> None:
        self.case, self.source = case, Source(case, device)
        self.launches_cost = case.gradients
        n_sets = self.source.n_sets(case, count)
        # Gates near 1, with which thousands of steps still count.
        gates = [self._numbers(0.99, 1.0) for _ in range(n_sets)] if case.gated else []
        tokens = [self._numbers(0.5, 1.0) for _ in range(n_sets)]
        if case.data == "impulse":
            for x in tokens:
                x[...] = 0
                x[..., 0] = 1
        self.upstream = [self._numbers(0.5, 1.0) for _ in range(n_sets)] if case.gradients else []
        for tensor in [*gates, *tokens] if case.gradients else []:
            tensor.requires_grad_()
        self.inputs = list(zip(gates, tokens)) if case.gated else [(x,) for x in tokens]
        self.keywords: dict[str, Any] = {}
        if case.reset:
            self.keywords["reset"] = self.source.uniform(case.shape) < 1e-4
        if self.source.is_numpy and not case.carry:  # written to, so that its pages exist
            self.keywords |= {"out": np.zeros(case.shape, case.dtype), "n_threads": n_threads()}

    def _numbers(self, low: float, high: float) -> Any:
        scale = 100 if self.case.dtype == "int64" else 1  # numbers below 1 would all be 0
        return self.source.uniform(self.case.shape, self.case.dtype, scale * low, scale * high)

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        if not self.case.gradients:
            return super().call(function)
        import torch

        return lambda i: torch.autograd.grad(function(*self.inputs[i]), self.inputs[i], self.upstream[i])

    def error(self, answer: Any) -> float:
        case, tokens = self.case, self.inputs[0][-1]
        if self.source.is_numpy:
            return self._error_of_examined(answer)
        from upsweep_bench import oracle

        if case.gradients:
            return oracle.gradient_error(answer, self.inputs[0][0], tokens, self.upstream[0])
        factor = self.inputs[0][0] if case.gated else 1.0 if case.operation == _SUM else case.gamma
        if case.carry:
            return oracle.carry_error(answer, factor, tokens, case.axis)
        return oracle.scan_error(answer, factor, tokens, case.axis, case.window)

    def _error_of_examined(self, answer: Any) -> float:
        """The error of the first steps of some lines (with `reverse` the last): the reference is a Python loop."""
        case = self.case
        some = [slice(_EXAMINED)] * len(case.shape)
        some[case.axis] = slice(-_EXAMINED, None) if case.reverse else slice(_EXAMINED)
        at = tuple(some)
        keywords: dict[str, Any] = {"axis": case.axis, "reverse": case.reverse, "exclusive": case.exclusive}
        keywords |= {"gamma": case.gamma} if case.operation == _DISCOUNTED else {}
        keywords |= {"window": case.window} if case.window is not None else {}
        keywords |= {"reset": self.keywords["reset"][at]} if case.reset else {}
        inputs = (array[at].astype(np.float64) for array in self.inputs[0])
        return base.relative_error(answer[at], getattr(reference, case.operation)(*inputs, **keywords))

    def allowed(self) -> float:
        # Rounded once: half an eps. A gradient of gates is a product of two numbers that were rounded.
        if self.case.dtype in ("float64", "int64"):
            return 1e-12
        eps = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[self.case.dtype]
        return (3 if self.case.gradients else 1) * eps

    def passes(self, n_threads: int) -> tuple[dict[str, Callable[[], object]], float]:
        gates, tokens = self.inputs[0][0], self.inputs[0][-1]
        out = self.keywords["out"]
        if not self.case.gated:
            methods = timing.copiers(tokens, out, n_threads)
        else:  # a + b -> out, of which only the number of bytes matters
            arrays = gates, tokens, out
            a, b, c = (x if x.dtype == np.float64 else x.reshape(-1).view(np.float32) for x in arrays)
            kinds: tuple[Literal["plain", "stream"], ...] = ("plain", "stream")
            methods = {f"add {kind}": partial(timing.baseline.add, a, b, c, n_threads, kind) for kind in kinds}
        return methods, self.case.n_bytes / (tokens.nbytes * (3 if self.case.gated else 2))


# ---- cases -----------------------------------------------------------------------------------------------------


def cases(quick: bool = False, device: str = "cpu") -> list[base.Case]:
    """Every case; `quick`: without large arrays and without peers that have to be compiled."""
    if device == "cpu":
        return [*_cpu_cases(quick), *small_calls(quick)]
    every = [
        replace(case, device="cuda")
        for case in (*_forward(), *_layouts(), *_gradients(), *_sums(), *_carries(), *_calls())
    ]
    if not quick:
        return list(every)
    return [
        replace(case, peers=tuple(peer for peer in case.peers if peer[0] != "associative_scan"))
        for case in every if case.n_elements <= _QUICK_ELEMENTS
    ]  # fmt: skip


def _cpu_cases(quick: bool) -> Iterator[Case]:
    lfilter = (("scipy lfilter", 10.0), ("numba loop, one thread", None))
    for dtype in ("float32",) if quick else ("float32", "float64"):
        line = 0.72 if dtype == "float32" else 0.80
        for operation in (_DISCOUNTED, _GATED):
            compared = lfilter if operation == _DISCOUNTED and dtype == "float32" else ()
            yield Case(operation, _LINE, dtype, line, peers=compared)
            yield Case(operation, _LINE, dtype, line, reverse=True)
            yield Case(operation, _LINE, dtype, 0.65, exclusive=True)
            yield Case(operation, _LINE, dtype, 0.65, reset=True)
            yield Case(operation, _LINE, dtype, 0.8, "of normal data", data="impulse")
            yield Case(operation, (64, 100_000), dtype, 0.80)
            yield Case(operation, (4096, 1024), dtype, 0.80)
            yield Case(operation, (100_000, 64), dtype, 0.70)
            yield Case(operation, (1024, 4096), dtype, 0.80, axis=0)
            yield Case(operation, (64, 1000, 100), dtype, 0.70, axis=1)
            if not quick:
                yield Case(operation, (1_000_000, 32), dtype, 0.80, axis=0)
                yield Case(operation, (4096, 8192), dtype, 0.80, axis=0)
        yield Case(_DISCOUNTED, _LINE, dtype, 0.70, gamma=0.9999)
        yield Case(_DISCOUNTED, _LINE, dtype, 0.70, gamma=1.0)
        yield Case(_DISCOUNTED, _LINE, dtype, 0.40, window=1000)
    yield Case(_SUM, _LINE, peers=(("np.cumsum, out=", None),))
    for shape in ((1, 1_000_000), (1000, 1000)):
        yield Case(_SUM, shape, "int64", peers=(("np.cumsum, out=", 1.0),))
    for operation in (_DISCOUNTED, _GATED):
        yield Case(operation, _LINE, "float16", 0.5)


def small_calls(quick: bool = False) -> Iterator[Direct]:
    """What a call on 128 elements costs beyond np.cumsum's, in microseconds."""
    for dtype in ("float32", "float64"):
        x = np.random.default_rng(0).random(128).astype(dtype)
        calls: dict[str, Callable[[], object]] = {
            _DISCOUNTED: partial(upsweep.discounted_cumsum, x, 0.99),
            _GATED: partial(upsweep.linear_recurrence, x, x),
            _SUM: partial(upsweep.cumulative_sum, x),
        }
        for name, call in calls.items():
            # cumulative_sum has no fast path past the Python layers, and no threshold.
            threshold = None if name == _SUM else 3.0
            run = partial(_small_call, call, x, 5 if quick else 15)
            yield Direct(f"{name} 128, more than np.cumsum", dtype, "us", threshold, run)


def _small_call(call: Callable[[], object], x: Any, rounds: int) -> tuple[float, float, str]:
    times = base.microseconds({"np.cumsum": partial(np.cumsum, x), "upsweep": call}, rounds)
    note = f"np.cumsum {times['np.cumsum']:.2f} us"
    return times["upsweep"] / 1e6, times["upsweep"] - times["np.cumsum"], note


def _forward() -> Iterator[Case]:
    gated = ordered(GATED_PEERS)
    half = (0.87, 0.93, 0.96)
    for dtype, thresholds in (("float32", (0.95, 0.99, 1.00)), ("bfloat16", half), ("float16", half)):
        peers = () if dtype == "float16" else gated
        if peers:
            yield Case(_GATED, (*_MODEL, 512), dtype, peers=peers)
        for length, threshold in zip((2048, 8192, 32768), thresholds):
            yield Case(_GATED, (*_MODEL, length), dtype, threshold, peers=peers)
    for length in (32, 1024, 4096, 16384, 32768, 65536):
        ten_percent = length in (4096, 16384, 65536)
        peers = (("fpscan", 1.1 if ten_percent else 1.0), *gated[1:])
        yield Case(_GATED, (2, 256, length), peers=peers)
    yield Case(_GATED, (1, 1, 65536), peers=gated)
    yield Case(_GATED, (1, 16, 65536), peers=gated)


def _layouts() -> Iterator[Case]:
    yield Case(_GATED, (8, 2048, 1536), threshold=0.85, axis=1)
    yield Case(_GATED, (16, 16384, 128), threshold=0.85, axis=1)
    yield Case(_GATED, (1_000_000, 32), threshold=0.85)
    yield Case(_GATED, (200_000, 128), threshold=0.85)
    for length, power in ((3000, 2048), (10007, 8192), (100003, 131072)):
        odd, even = ((_MODEL_ELEMENTS // n, n) for n in (length, power))
        # An odd length may cost an element 5 % more than a power of two.
        yield Case(_GATED, odd, threshold=1 / 1.05, metric="per element", versus_shape=even)


def _gradients() -> Iterator[Case]:
    peers = ordered(GATED_PEERS[:3])
    for dtype, threshold in (("float32", 0.94), ("bfloat16", 0.85)):
        yield Case(_GATED, (*_MODEL, 2048), dtype, gradients=True, peers=peers)
        yield Case(_GATED, (*_MODEL, 8192), dtype, threshold, gradients=True, peers=peers)
    for length in (1024, 32768):
        yield Case(_GATED, (2, 256, length), gradients=True, peers=peers)


def _sums() -> Iterator[Case]:
    thresholds = {(1, 10_000_000): 0.75, (64, 100_000): 0.75, (4096, 1024): 0.85, (1024, 65536): 0.85}
    for shape in ((1, 100_000), (1, 10_000_000), (64, 100_000), (4096, 1024), (65535, 64), (1024, 65536)):
        peers = ordered(("torch-discounted-cumsum",))
        yield Case(_DISCOUNTED, shape, threshold=thresholds.get(shape), peers=peers)
        yield Case(_SUM, shape, peers=ordered(("torch.cumsum",)))
    yield Case(_DISCOUNTED, (65536, 64), threshold=0.85)
    yield Case(_DISCOUNTED, (1, 1 << 28), threshold=0.85)
    yield Case(_SUM, (1, 1 << 28), peers=ordered(("torch.cumsum",)))
    yield Case(_DISCOUNTED, (16, 524288), threshold=0.75)
    yield Case(_DISCOUNTED, (1, 10_000_000), threshold=0.5, window=1000)


def _carries() -> Iterator[Case]:
    for shape in ((256, 1 << 20), (1, 1 << 28)):
        for operation in (_GATED, _DISCOUNTED, _SUM):
            yield Case(operation, shape, threshold=0.85, carry=True)
    yield Case(_GATED, (1 << 14, 1 << 14), threshold=0.85, axis=0, carry=True)
    yield Case(_GATED, (1_000_000, 32), carry=True)


def _calls() -> Iterator[Case]:
    yield Case(_GATED, (1, 65536), threshold=8.0, metric="us")
    yield Case(_DISCOUNTED, (1, 100_000), threshold=5.0, metric="us")
    for operation in (_GATED, _DISCOUNTED, _SUM):
        yield Case(operation, (16, 128), threshold=5.0, metric="us host")
