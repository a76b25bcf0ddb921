"""Base classes of benchmark cases and of the arrays that they run on.

A case is plain data: creating one imports neither torch nor the peers, and needs no GPU. `Case.arrays` allocates
the inputs: numpy arrays for the CPU, torch tensors for CUDA. `Source` creates random arrays of both kinds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import upsweep

__all__ = [
    "Arrays", "Case", "Direct", "OneDimensional", "PeerThresholds", "Source", "as_float64", "as_numpy",
    "microseconds", "n_threads", "ordered", "relative_error", "sizes",
]  # fmt: skip

PeerThresholds = tuple[tuple[str, float | None], ...]
"""Names of peers (`peers.PEERS`), each with the threshold of the peer's time over upsweep's."""

_ABSOLUTE = {"us": 1e6, "us host": 1e6, "ms": 1e3}
_UNITS = {"us host": "us", "us a step": "us", "us": "us", "ms": "ms", "of dense": "of dense"}  # of others: "x"


class Case:
    """What all cases have in common; subclasses are frozen dataclasses with these fields.

    `metric` says what `threshold` applies to: "of copy" is the speed as a fraction of a pass over as many bytes;
    "us", "us host", "ms" are absolute times; every other metric is the ratio to the time of another call of
    upsweep (`versus`).
    """

    dtype: str
    threshold: float | None
    metric: str
    peers: PeerThresholds
    device: str

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name that ``--only`` and asv select by."""
        return f"{self.name}, {self.dtype}"

    @property
    def length(self) -> int | None:
        """The size that cases of one family differ in."""
        return None

    @property
    def family(self) -> str:
        return self.label

    @property
    def n_bytes(self) -> int | None:
        """The fewest bytes that the call can move."""
        return None

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def pass_name(self) -> str | None:
        """The pass over memory that the case is compared with: "copy", "add" (a + b), or None."""
        return "copy" if self.metric == "of copy" else None

    @property
    def unit(self) -> str:
        if self.pass_name is not None:
            return {"copy": "of copy", "add": "of a+b"}[self.pass_name]
        return _UNITS.get(self.metric, "x")

    def value(self, seconds: float) -> float | None:
        """The metric where it is absolute, else None."""
        return seconds * _ABSOLUTE[self.metric] if self.metric in _ABSOLUTE else None

    def note(self, seconds: float) -> str:
        """What else a row shows."""
        return ""

    def function(self, arrays: Any) -> Callable[..., Any]:
        """The call of upsweep that is measured, a function of one set of the inputs in `arrays`."""
        raise NotImplementedError

    def arrays(self, count: int | None = None, device: str | None = None) -> Arrays:
        """`count` sets of inputs (None: as many as the L2 cache cannot hold) on `device`, as `Source` names it."""
        raise NotImplementedError

    def versus(self, arrays: Any) -> tuple[Arrays, Callable[..., Any]] | None:
        """The inputs and the call that a relative metric is compared with."""
        return None

    @property
    def versus_label(self) -> str:
        return ""

    @property
    def versus_scale(self) -> float:
        """The work of this case over that of the call it is compared with."""
        return 1.0


class OneDimensional(Case):
    """A case over one array of `n` elements, as counts and histograms are."""

    n: int

    @property
    def length(self) -> int:
        return self.n

    @property
    def family(self) -> str:
        return self.label.replace(f"{self.n:,} ", "n ", 1)


@dataclass(frozen=True)
class Direct(Case):
    """A case that measures itself, such as a first use: `run` returns seconds, the value and a note."""

    title: str
    dtype: str
    metric: str
    threshold: float | None
    run: Callable[[], tuple[float, float, str]]
    device: str = "cpu"
    peers: PeerThresholds = ()

    @property
    def name(self) -> str:
        return self.title


class Arrays:
    """The inputs of a case, in several sets, and its calls on them."""

    launches_cost = False  # whether the host needs as long to launch the call as the device to run it
    inputs: Sequence[tuple[Any, ...]]

    @property
    def n_sets(self) -> int:
        return len(self.inputs)

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        """The call that is timed, on the set of inputs with a given number."""
        return lambda i: function(*self.inputs[i])

    def answer(self, function: Callable[..., Any]) -> Any:
        """What `error` examines: the result for the first set of inputs."""
        return self.call(function)(0)

    def error(self, answer: Any) -> float:
        """The largest error of an answer, relative where the reference is not near 0."""
        raise NotImplementedError

    def allowed(self) -> float:
        """The error that rounding explains."""
        raise NotImplementedError

    def passes(self, n_threads: int) -> tuple[dict[str, Callable[[], object]], float]:
        """On the CPU the passes over memory to compare with, and the bytes of the case over theirs."""
        return {}, 1.0


class Source:
    """Random arrays: of numpy for `device` "numpy", else of torch on "cpu" or "cuda"."""

    def __init__(self, case: Case, device: str | None, seed: int = 0) -> None:
        self.device = device or ("cuda" if case.on_cuda else "numpy")
        self.is_numpy = self.device == "numpy"
        self.xp: Any = np
        if self.is_numpy:
            self._random: Any = np.random.default_rng(seed)
        else:
            import torch

            self.xp = torch
            self._random = torch.Generator(self.device).manual_seed(seed)

    def uniform(self, shape: Any, dtype: str = "float32", low: float = 0.0, high: float = 1.0) -> Any:
        """Numbers from `low` to `high`; bytes and integers are truncated."""
        wide = "float64" if dtype == "float64" else "float32"
        if self.is_numpy:
            unit = self._random.random(shape, wide)
            unit *= high - low
            unit += low
            return unit.astype(dtype, copy=False)
        dtypes = {"dtype": getattr(self.xp, wide), "device": self.device}
        unit = self.xp.rand(shape, generator=self._random, **dtypes)
        return unit.mul_(high - low).add_(low).to(getattr(self.xp, dtype))

    def normal(self, shape: Any, dtype: str = "float32") -> Any:
        return self._random.standard_normal(shape).astype(dtype)

    def integers(self, n: int, high: int, dtype: str) -> Any:
        """`n` integers of [0, high)."""
        if self.is_numpy:
            return self._random.integers(0, high, n, dtype)
        dtypes = {"dtype": getattr(self.xp, dtype), "device": self.device}
        return self.xp.randint(high, (n,), generator=self._random, **dtypes)

    def positions(self, n: int) -> Any:
        """0, 1, ..., n - 1."""
        return np.arange(n) if self.is_numpy else self.xp.arange(n, device=self.device)

    def cast(self, array: Any, dtype: str) -> Any:
        return array.astype(dtype) if self.is_numpy else array.to(getattr(self.xp, dtype))

    def n_sets(self, case: Case, count: int | None) -> int:
        """How many sets of inputs: one on the CPU, on a GPU as many as its L2 cache cannot hold."""
        if count is not None or self.is_numpy:
            return count or 1
        from upsweep_bench import graph_timing

        return graph_timing.n_sets(case.n_bytes or 1)


def as_numpy(array: Any) -> Any:
    """The array in host memory."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def as_float64(array: Any) -> Any:
    """The array in float64, on the device that it is on."""
    return array.detach().double() if hasattr(array, "detach") else np.asarray(array, np.float64)


def sizes(shape: Sequence[int], separator: str = " x ", least: int = 0) -> str:
    """Sizes with commas at the thousands, from `least` on."""
    return separator.join(f"{size:,}" if size >= least else str(size) for size in shape)


def ordered(names: Sequence[str], threshold: float | None = 1.0) -> PeerThresholds:
    """Peers with the same threshold."""
    return tuple((name, threshold) for name in names)


def relative_error(actual: Any, expected: Any, floor: float = 0.0) -> float:
    """The largest error relative to the reference, at least `floor`; inf where shapes differ, NaN for a NaN."""
    actual, expected = np.asarray(as_numpy(actual), np.float64), np.asarray(as_numpy(expected), np.float64)
    if actual.shape != expected.shape:
        return math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(actual - expected) / np.maximum(np.abs(expected), floor)
    return float(np.where(actual == expected, 0.0, error).max(initial=0.0))


def n_threads() -> int:
    return upsweep.get_num_threads()


def microseconds(methods: Mapping[str, Callable[[], object]], rounds: int, loops: int = 1000) -> dict[str, float]:
    """Time calls that take microseconds: the median over rounds of the mean over `loops` calls."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, call in methods.items():
            begin = time.perf_counter()
            for _ in range(loops):
                call()
            times[name].append((time.perf_counter() - begin) / loops * 1e6)
    return {name: statistics.median(samples) for name, samples in times.items()}
