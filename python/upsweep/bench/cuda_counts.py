"""Counts of CUDA tensors: each case's answer checked, then timed beside a copy, uniform keys and the peers.

A wrong answer of upsweep raises `WrongResult`: nothing is timed. A peer that raises or answers wrongly gets a
row that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

import upsweep
from upsweep.bench import cuda_harness as harness
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
from upsweep.bench.cuda_count_cases import Case
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


def make_keys(case: Case, generator: Any) -> Any:
    """Keys of the case's distribution, in [0, n_bins) as far as their dtype reaches."""
    n, device, dtype = case.n, generator.device, getattr(torch, case.dtype)
    top = min(case.n_bins, torch.iinfo(dtype).max + 1)

    def uniform(below: int) -> Any:
        return torch.randint(below, (n,), generator=generator, device=device, dtype=dtype)

    if case.distribution == "all equal":
        return torch.full((n,), top // 2, device=device, dtype=dtype)
    if case.distribution == "two values":
        return uniform(2) * (top - 1)
    if case.distribution == "sorted":
        return (torch.arange(n, device=device) * top // n).to(dtype)
    if case.distribution == "Zipf":  # the k-th key comes up about 1/k times as often as the first
        places = torch.rand(n, generator=generator, device=device, dtype=torch.float64).mul_(math.log(top + 1))
        return places.exp_().sub_(1).clamp_(0, top - 1).to(dtype)
    if case.distribution == "multiples of 32":
        return uniform(max(1, (top + 31) // 32)) * 32
    return uniform(min(top, 32_768) if case.distribution == "low bins" else top)


class Tensors:
    """The sets of arrays of a case, weights all positive, and its calls on them."""

    def __init__(self, case: Case, count: int | None = None, device: str = "cuda") -> None:
        self.case, self.n_sets = case, harness.n_sets(case.n_bytes) if count is None else count
        generator = torch.Generator(device).manual_seed(0)

        def numbers() -> Any:
            return torch.rand(case.n, generator=generator, device=device)

        self.keys = [numbers() if case.is_histogram else make_keys(case, generator) for _ in range(self.n_sets)]
        self.weights = [numbers() + 0.5 if case.weights else None for _ in range(self.n_sets)]

    def call(self, function: Callable[..., Any]) -> Callable[[int], Any]:
        """The function as the call that is timed, on the set of arrays with a given number."""
        return lambda i: function(self.keys[i], self.weights[i])

    def subject(self, function: Callable[..., Any], capturable: bool = True) -> Subject:
        return Subject(self.call(function), self.n_sets, capturable)

    def error(self, answer: Any) -> float:
        """The largest error of an answer for the first set, relative to the count or sum, and absolute below 1."""
        expected = _expected(self.case, self.keys[0], self.weights[0])
        if tuple(answer.shape) != tuple(expected.shape):
            return math.inf
        return float(((answer.to(torch.float64) - expected).abs() / expected.clamp(min=1)).max())

    def eps(self) -> float:
        """What an answer that was rounded once may be off by."""
        return 2.0**-24 if self.case.weights else 0.0


def _expected(case: Case, keys: Any, weights: Any) -> Any:
    """The answer in float64: counts from the places of bins among the sorted keys."""
    if case.is_histogram:
        counts: Any = upsweep.histc(keys.cpu(), case.n_bins, 0, 1)  # the CPU's, which is tested against torch's
        return counts.to(keys.device, torch.float64)
    if weights is None:
        ends = torch.arange(case.n_bins + 1, device=keys.device)
        at = torch.searchsorted(keys.sort().values.long(), ends)
        return at.diff().to(torch.float64)
    sums = torch.zeros(case.n_bins, dtype=torch.float64, device=keys.device)
    return sums.index_put_((keys.long(),), weights.double(), accumulate=True)


def function_of(case: Case) -> Callable[..., Any]:
    """The call of upsweep that a user would write who knows how many bins there are."""
    if case.is_histogram:
        return lambda x, _: upsweep.histc(x, case.n_bins, 0, 1)
    options: dict[str, Any] = {"deterministic": True} if case.deterministic else {}
    return lambda x, weights: upsweep.bincount(x, weights, length=case.n_bins, invalid="drop", **options)


def check(case: Case, tensors: Tensors) -> None:
    """Raise WrongResult unless upsweep's answer is right: exactly, or to rounding where it is a sum."""
    error = tensors.error(tensors.call(function_of(case))(0))
    if not error <= tensors.eps():
        raise WrongResult(f"{case.name}, {case.dtype}: error {error:.2g}, at most {tensors.eps():.2g} allowed")


def measure_case(case: Case, rounds: int = _ROUNDS, warmup: int = 2) -> list[Row]:
    """Check and time one case: its own row, then one for each peer.

    Raises
    ------
    WrongResult
        Where upsweep's own answer is wrong.
    ContextLost
        Where a peer has made the device unusable.
    """
    tensors, versus = _checked(case), None
    if case.figure != "of copy":
        other = replace(case, distribution="uniform", deterministic=False)
        others = tensors if other.distribution == case.distribution else None
        versus = _checked(other, others), function_of(other)
    return rows_from_samples(case, *measure(case, (tensors, function_of(case)), versus, rounds, warmup))


def _checked(case: Case, tensors: Tensors | None = None) -> Tensors:
    tensors = Tensors(case) if tensors is None else tensors
    check(case, tensors)
    return tensors


def rows_from_samples(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> list[Row]:
    """A case's row and those of its peers, from seconds a call; `notes` say what was not timed, and why."""
    return list(_rows(case, seconds, notes))


def _rows(case: Case, seconds: Mapping[str, list[float]], notes: Mapping[str, str]) -> Iterator[Row]:
    ours, yardstick = seconds[OURS], "copy" if case.figure == "of copy" else "versus"
    beside = {"of copy": "copy", "of uniform": "uniform keys", "of free": "in any order"}[case.figure]
    note = [f"{beside} {harness.median(seconds[yardstick]) * 1e3:.4f} ms", notes.get(OURS, "")]
    about: dict[str, Any] = {"dtype": case.dtype, "length": case.length, "family": case.family}
    yield Row(
        case.name, seconds=harness.median(ours), bar=case.bar, note="; ".join(filter(None, note)), method=OURS,
        p90=harness.quantile(ours, 0.9), n_bytes=case.n_bytes, unit="of copy" if yardstick == "copy" else "x",
        **about, **ratio(seconds[yardstick], ours),
    )  # fmt: skip
    yield from peer_rows(case, seconds, notes, about)
