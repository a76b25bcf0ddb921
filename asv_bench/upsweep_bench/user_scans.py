"""Scans by a user's update, and filters: cases, inputs, error.

A scan reads its inputs once and writes its outputs: its speed is a fraction of that of a copy of as many bytes.
An update that is affine in its state is compared with `linear_recurrence` or `discounted_cumsum`. On the CPU
scans write to `out`, since new memory of many MiB costs as much as the scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import upsweep
from upsweep import reference
from upsweep.bench import timing

from upsweep_bench import case as base
from upsweep_bench.case import PeerThresholds, Source, as_float64, as_numpy, ordered, sizes

__all__ = ["UPDATES", "Arrays", "Case", "Filter", "average", "cases", "updates"]

_COLUMNS = 512  # that the results are compared with the reference for
_ALLOWED = {"float32": 2e-5, "float64": 1e-10, "float16": 2e-3}
_ITEMSIZES = {"float32": 4, "float64": 8, "float16": 2}
LFILTER = ((0.06745527, 0.13491055, 0.06745527), (1.0, -1.1429805, 0.4128016))
HALFLIFE = 20


def total(s: Any, x: Any) -> Any:
    """A sum."""
    return s + x


def average(s: Any, x: Any) -> Any:
    """An exponential moving average."""
    return 0.9 * s + 0.1 * x


def cell(s: Any, x: Any) -> Any:
    """A nonlinear recurrence, which is not associative."""
    return np.tanh(s + x)


def garch(s: Any, x: Any) -> Any:
    """The variance of a GARCH model."""
    return 0.1 + 0.2 * x * x + 0.7 * s


def gated(s: Any, x: Any) -> Any:
    """A recurrence of gates and tokens."""
    return x[0] * s + x[1]


def decayed(s: Any, x: Any) -> Any:
    """A recurrence whose gates and tokens are computed in the update."""
    return np.exp(-x[0]) * s + (1 - x[0]) * x[1]


def mixture(s: Any, x: Any) -> Any:
    """A moving average whose weight changes from step to step."""
    return x[0] * s + (1 - x[0]) * x[1]


def holt(s: Any, x: Any) -> Any:
    """Holt's level and trend; the output is the forecast."""
    level, trend = s
    new = 0.3 * x + 0.7 * (level + trend)
    return (new, 0.9 * trend + 0.1 * (new - level)), level + trend


UPDATES = {
    "sum": total, "average": average, "tanh": cell, "GARCH": garch, "gates and tokens": gated, "decay": decayed,
    "mixture": mixture, "Holt": holt,
}  # fmt: skip

# The same scans by a known function, for whole lines.
_KNOWN: dict[str, Callable[..., Any]] = {
    "average": lambda axis, x: upsweep.discounted_cumsum(0.1 * x, 0.9, axis=axis),
    "mixture": lambda axis, g, x: upsweep.linear_recurrence(g, (1 - g) * x, axis=axis),
}


@dataclass(frozen=True)
class Case(base.Case):
    """One call to time. Metric "of linear": the time of `linear_recurrence` or `discounted_cumsum`, whichever
    computes as much, over that of the scan.
    """

    update: str
    shape: tuple[int, ...]
    axis: int = 0
    dtype: str = "float32"
    threshold: float | None = None
    metric: str = "of copy"
    gradients: bool = False
    peers: PeerThresholds = ()
    device: str = "cpu"

    @property
    def n_inputs(self) -> int:
        return 2 if self.update in ("gates and tokens", "decay", "mixture") else 1

    @property
    def n_states(self) -> int:
        return 2 if self.update == "Holt" else 1

    @property
    def name(self) -> str:
        shape = f"({sizes(self.shape, ', ', 0 if self.on_cuda else 10_000)})"
        if not self.on_cuda and len(self.shape) == 1:
            shape = f"of a line of {self.shape[0]:,}"
        words = [self.update, shape] + [f"axis {self.axis}"] * (self.axis != 0)
        return " ".join(words + ["forward and backward"] * self.gradients)

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @property
    def family(self) -> str:
        return f"{self.update}, {self.dtype}, axis {self.axis}"

    @property
    def n_bytes(self) -> int:
        """Forward plus backward, which reads inputs, states and a gradient, and writes gradients of the inputs."""
        backward = 2 * self.n_inputs + self.n_states + 1 if self.gradients else 0
        return math.prod(self.shape) * _ITEMSIZES[self.dtype] * (self.n_inputs + 1 + backward)

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        return Arrays(self, count, device)

    def function(self, arrays: Arrays) -> Callable[..., Any]:
        update, init = UPDATES[self.update], (0.0,) * self.n_states if self.n_states > 1 else 0.0
        axis, keywords = self.axis, arrays.keywords
        return lambda *xs: upsweep.scan(update, init, xs if len(xs) > 1 else xs[0], axis=axis, **keywords)

    def known(self) -> Callable[..., Any]:
        """The function of upsweep for a recurrence of as many inputs."""
        return upsweep.linear_recurrence if self.n_inputs == 2 else partial(upsweep.discounted_cumsum, gamma=0.9)

    def versus(self, arrays: Arrays) -> tuple[base.Arrays, Callable[..., Any]] | None:
        if self.metric != "of linear":
            return None
        keywords = {name: np.zeros_like(out) for name, out in arrays.keywords.items()}
        return arrays, partial(self.known(), axis=self.axis, **keywords)

    @property
    def versus_label(self) -> str:
        return "linear_recurrence" if self.n_inputs == 2 else "discounted_cumsum"


class Arrays(base.Arrays):
    """Inputs, on the CPU normally distributed, on CUDA uniform."""

    def __init__(self, case: Case, count: int | None = None, device: str | None = None) -> None:
        self.case, self.source = case, Source(case, device)
        self.launches_cost = case.gradients
        n_sets = self.source.n_sets(case, count)
        self.inputs = [tuple(self._numbers() for _ in range(case.n_inputs)) for _ in range(n_sets)]
        self.keywords: dict[str, Any] = {"out": np.zeros(case.shape, case.dtype)} if self.source.is_numpy else {}

    def _numbers(self) -> Any:
        numbers = self.source.normal if self.source.is_numpy else self.source.uniform
        x = numbers(self.case.shape, self.case.dtype)
        return x.requires_grad_() if self.case.gradients else x

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        if not self.case.gradients:
            return super().call(function)
        import torch

        def forward_and_backward(i: int) -> Any:
            y = function(*self.inputs[i])
            return torch.autograd.grad(y, self.inputs[i], y.detach())

        return forward_and_backward

    def answer(self, function: Callable[..., Any]) -> Any:
        return function(*self.inputs[0])  # without derivatives

    def error(self, answer: Any) -> float:
        """The error of some columns: of the first steps, or of whole lines where a known function serves."""
        case, inputs = self.case, self.inputs[0]
        if case.update in _KNOWN and case.axis == len(case.shape) - 1:
            lines = _KNOWN[case.update](case.axis, *(as_float64(x) for x in inputs))
            expected = self._examined(lines, case.length)
        else:
            steps = min(case.length, 3000 if case.on_cuda else 300)
            xs = tuple(self._examined(x, steps) for x in inputs)
            init = (0.0,) * case.n_states if case.n_states > 1 else 0.0
            expected = reference.scan(UPDATES[case.update], init, xs if len(xs) > 1 else xs[0], axis=0)
        return base.relative_error(self._examined(answer, len(expected)), expected, floor=1.0)

    def _examined(self, x: Any, steps: int) -> Any:
        """The first steps of some columns in float64, the steps along the first axis."""
        moved = x.movedim(self.case.axis, 0) if hasattr(x, "movedim") else np.moveaxis(x, self.case.axis, 0)
        columns = moved[:steps].reshape(min(steps, len(moved)), -1)[:, :_COLUMNS]
        return np.asarray(as_numpy(columns), np.float64)

    def allowed(self) -> float:
        return _ALLOWED[self.case.dtype]

    def passes(self, n_threads: int) -> tuple[dict[str, Callable[[], object]], float]:
        (x,) = self.inputs[0]
        return timing.copiers(x, np.zeros_like(x), n_threads), 1.0


# ---- filters ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filter(base.Case):
    """A filter of one line: "lfilter" of order 2, or "ewm_mean", whose line may have missing values."""

    function_name: str
    n: int
    missing: bool = False
    peers: PeerThresholds = ()
    dtype: str = "float64"
    threshold: float | None = None
    metric: str = "of copy"
    device: str = "cpu"

    @property
    def name(self) -> str:
        words = "lfilter of order 2" if self.function_name == "lfilter" else "ewm_mean of a line"
        return f"{words}, {self.n:,}" + ", a tenth missing" * self.missing

    @property
    def length(self) -> int:
        return self.n

    @property
    def n_bytes(self) -> int:
        return 16 * self.n

    def arrays(self, count: int | None = None, device: str | None = None) -> FilterArrays:
        return FilterArrays(self)

    def function(self, arrays: Any) -> Callable[..., Any]:
        if self.function_name == "lfilter":
            return partial(upsweep.lfilter, *LFILTER)
        return partial(upsweep.ewm_mean, halflife=HALFLIFE)


class FilterArrays(base.Arrays):
    """One line."""

    def __init__(self, case: Filter) -> None:
        self.case = case
        generator = np.random.default_rng(0)
        x = generator.standard_normal(case.n)
        if case.missing:
            x[generator.random(case.n) < 0.1] = np.nan
        self.inputs = [(x,)]

    def error(self, answer: Any) -> float:
        """The error of the first steps."""
        x = self.inputs[0][0][:300]
        loop = _lfilter_loop if self.case.function_name == "lfilter" else _ewm_loop
        expected, actual = loop(x), np.asarray(answer)[: len(x)]
        if (np.isnan(actual) != np.isnan(expected)).any():
            return math.inf
        return base.relative_error(np.nan_to_num(actual), np.nan_to_num(expected), floor=1.0)

    def allowed(self) -> float:
        return 1e-8

    passes = Arrays.passes


def _lfilter_loop(x: Any) -> Any:
    """The difference equation of the filter, step by step."""
    b, a = LFILTER
    x, y = np.concatenate([[0, 0], x]), np.zeros(len(x) + 2)
    for t in range(2, len(y)):
        y[t] = b[0] * x[t] + b[1] * x[t - 1] + b[2] * x[t - 2] - a[1] * y[t - 1] - a[2] * y[t - 2]
    return y[2:]


def _ewm_loop(x: Any) -> Any:
    """The exponentially weighted mean with pandas' defaults, step by step: a missing value ages the others."""
    decay, weighted, weights = 0.5 ** (1 / HALFLIFE), 0.0, 0.0
    means = np.full(len(x), np.nan)
    for t, number in enumerate(x):
        weighted, weights = decay * weighted, decay * weights
        if not np.isnan(number):
            weighted, weights = weighted + number, weights + 1
        if weights:
            means[t] = weighted / weights
    return means


# ---- cases -----------------------------------------------------------------------------------------------------


def cases(quick: bool = False, device: str = "cpu") -> list[base.Case]:
    """Every case; `quick`: small ones."""
    if device == "cuda":
        return [replace(case, device="cuda") for case in (_quick_cuda_cases() if quick else _cuda_cases())]
    length = 200_000 if quick else 10_000_000
    pandas = ordered(("pandas",))
    filters = [Filter("ewm_mean", length, missing, pandas) for missing in (False, True)]
    lfilter = [] if quick else [Filter("lfilter", length, peers=(("scipy lfilter", 7.0),))]
    return [*updates(quick), *lfilter, *filters]


def updates(quick: bool = False) -> list[Case]:
    """The user-defined scans on the CPU."""
    loop, jax = (("numba", 6.0),), ordered(("jax.lax.scan",))
    small = [
        Case("sum", (1024, 1024), threshold=0.9, peers=jax),
        Case("sum", (100_000, 16), threshold=0.83),
        Case("tanh", (1000, 4096), peers=(*loop, *jax)),
        Case("tanh", (4096, 1000), axis=1, peers=loop),
    ]
    if quick:
        return small
    return [
        *small,
        Case("sum", (4096, 8192), threshold=0.8),
        Case("average", (10_000_000,), threshold=0.83, metric="of linear"),
        Case("GARCH", (1000, 10_000), dtype="float64", peers=ordered(("numba",))),
        Case("GARCH", (10_000, 1000), axis=1, dtype="float64", peers=ordered(("numba",))),
    ]


_WITHIN = 1 / 1.2  # the share of the speed of linear_recurrence


def _quick_cuda_cases() -> Iterator[Case]:
    yield Case("sum", (1024, 65_536), threshold=0.8)
    yield Case("tanh", (512, 65_536), threshold=0.6)
    yield Case("tanh", (65_536, 512), axis=1)
    yield Case("average", (1_000_000,), metric="of linear", threshold=_WITHIN)


def _cuda_cases() -> Iterator[Case]:
    yield Case("sum", (16_384, 65_536), threshold=0.85)
    yield Case("tanh", (4096, 65_536), threshold=0.6)
    yield Case("tanh", (65_536, 4096), axis=1)
    yield Case("tanh", (4096, 65_536), dtype="float16")
    yield Case("tanh", (4096, 4096))
    yield Case("tanh", (1024, 65_536), gradients=True)
    yield Case("Holt", (4096, 65_536))
    yield Case("decay", (4096, 65_536), metric="of linear", threshold=_WITHIN)
    linear: dict[str, tuple[tuple[tuple[int, ...], int], ...]] = {
        "gates and tokens": (((4096, 12_288), 0), ((12_288, 4096), 1), ((10_000_000,), 0), ((65_536, 64), 0)),
        "average": (
            ((2**28,), 0), ((10_000_000,), 0), ((100_000,), 0), ((16, 524_288), 1), ((64, 100_000), 1),
            ((1024, 16_384), 1), ((100_000, 64), 0), ((4096, 65_536), 0),
        ),
        "mixture": (((2**27,), 0), ((10_000_000,), 0), ((16, 524_288), 1), ((100_000, 64), 0)),
    }  # fmt: skip
    for update, shapes in linear.items():
        for shape, axis in shapes:
            yield Case(update, shape, axis, metric="of linear", threshold=_WITHIN)
