"""The main cases of ``python -m upsweep bench``: inputs, the call of upsweep, a numpy reference, and peers.

A case is written once for CPU and CUDA. Inputs are created by numpy and copied to the device; the result, or a
part of it, is compared with the reference in float64. Every case that this project tracks is in ``asv_bench`` of
the source distribution.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep import reference

Array = NDArray[Any]

FAMILIES = ("scans", "counts", "pairs", "userscan")
LARGE, SMALL, SMALLEST = 1 << 24, 1 << 20, 1 << 14  # elements of a case; the smallest serve to count the cases
_GAMMA = 0.99
_EXAMINED = 300  # steps that scans are compared with the reference for, which is a Python loop


@dataclass(frozen=True)
class Case:
    """One call to time. `expected` returns what `examined` must select of the result, to `tolerance`.

    `peers` are functions of the same inputs, which may be absent (None).
    """

    name: str
    inputs: tuple[Array, ...]
    call: Callable[..., Any]
    expected: Callable[..., Any]
    n_bytes: int
    examined: Callable[[Any], Any] = lambda result: result
    tolerance: float = 1e-5
    peers: dict[str, Callable[..., Any] | None] = field(default_factory=dict)

    @property
    def n_pairs(self) -> int:
        """The pairs of points of a reduction over pairs."""
        return math.prod(len(x) for x in self.inputs)

    @property
    def dtype(self) -> str:
        return self.inputs[0].dtype.name

    def error(self, result: Any) -> float:
        """The largest error relative to the reference, absolute below 1; inf for another shape."""
        actual = self.examined(result)
        actual = np.asarray(actual.cpu() if hasattr(actual, "cpu") else actual, np.float64)
        expected = np.asarray(self.expected(*self.inputs), np.float64)
        if actual.shape != expected.shape:
            return math.inf
        return float((np.abs(actual - expected) / np.maximum(np.abs(expected), 1.0)).max(initial=0.0))


def to_device(array: Array, device: str) -> Any:
    """The array, or on "cuda" a tensor with a copy of it."""
    if device == "cpu":
        return array
    import torch

    return torch.from_numpy(array).to(device)


def _attribute(module: str, name: str) -> Any:
    """An attribute of a module, or None where it is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return None


def cases(family: str, device: str, n: int) -> Iterator[Case]:
    """The cases of a family, of about n elements. Call `upsweep.selftest.run` before timing them on the CPU."""
    on_cpu = device == "cpu"
    makers = {"scans": _scans, "counts": _counts, "pairs": _pairs, "userscan": _user_scans}
    return makers[family](n, on_cpu, np.random.default_rng(0))


def _scans(n: int, on_cpu: bool, rng: np.random.Generator) -> Iterator[Case]:
    for dtype in ("float32", "float64"):
        for shape, axis in (((1, n), -1), ((64, n // 64), -1), ((n // 1024, 1024), 0)):
            x = rng.random(shape).astype(dtype)
            gates = (0.99 + 0.01 * rng.random(shape)).astype(dtype)
            words = f"{' x '.join(f'{size:,}' for size in shape)}{' axis 0' if axis == 0 else ''}"
            out = {"out": np.zeros_like(x)} if on_cpu else {}
            head = (slice(_EXAMINED),) if axis == 0 else (slice(None), slice(_EXAMINED))
            sums = {"np.cumsum": partial(np.cumsum, axis=axis, **out)} if on_cpu else {}
            lfilter = _attribute("scipy.signal", "lfilter") if on_cpu else None
            if lfilter is not None:
                lfilter = partial(lfilter, np.ones(1, dtype), np.array([1, -_GAMMA], dtype), axis=axis)
            if not on_cpu:
                sums = {"torch.cumsum": partial(_attribute("torch", "cumsum"), dim=axis)}
            for name, inputs, arguments, peers in (
                ("cumulative_sum", (x,), {}, sums),
                ("discounted_cumsum", (x,), {"gamma": _GAMMA}, {"scipy.signal.lfilter": lfilter}),
                ("linear_recurrence", (gates, x), {}, {}),
            ):
                keywords: dict[str, Any] = {**arguments, "axis": axis}
                loop = partial(_of_head, partial(getattr(reference, name), **keywords), head)
                yield Case(
                    f"{name} {words}", inputs, partial(getattr(upsweep, name), **keywords, **out), loop,
                    x.nbytes * (len(inputs) + 1), itemgetter(head), peers=dict(peers),
                )  # fmt: skip


def _of_head(function: Callable[..., Any], head: Any, *inputs: Array) -> Any:
    """The reference of the first steps, in float64."""
    return function(*(x[head].astype(np.float64) for x in inputs))


def _counts(n: int, on_cpu: bool, rng: np.random.Generator) -> Iterator[Case]:
    torch_peers = {name: _attribute("torch", name) for name in ("bincount", "histc")} if not on_cpu else {}
    for dtype, n_bins in (("int64", 256), ("int64", 10_000), ("int32", 256), ("uint8", 256)):
        keys = rng.integers(0, n_bins, n).astype(dtype)
        keys[0] = n_bins - 1  # so that every peer returns as many bins
        peer = {"np.bincount": np.bincount} if on_cpu else {"torch.bincount": torch_peers["bincount"]}
        yield Case(f"bincount {n:,} in {n_bins:,} bins", (keys,), upsweep.bincount, np.bincount, keys.nbytes,
                   tolerance=0.0, peers=dict(peer))  # fmt: skip
    x = rng.random(n, np.float32)
    call, expected = partial(upsweep.histc, bins=100, min=0, max=1), partial(np.histogram, bins=100, range=(0, 1))
    peers = {"np.histogram": expected} if on_cpu else {
        "torch.histc": partial(torch_peers["histc"], bins=100, min=0, max=1)}  # fmt: skip
    yield Case(f"histc {n:,} in 100 bins", (x,), call, lambda x: expected(x)[0], x.nbytes,
               tolerance=0.0, peers=dict(peers))  # fmt: skip


def _pairs(n: int, on_cpu: bool, rng: np.random.Generator) -> Iterator[Case]:
    size = math.isqrt(16 * n)
    x, y = rng.random((2, size, 3)).astype(np.float32)
    for name in ("Gaussian sum", "logsumexp"):

        def call(x: Any, y: Any, name: str = name) -> Any:
            exponent = -upsweep.Vi(x).sqdist(upsweep.Vj(y))
            return exponent.exp().sum(axis=1) if name == "Gaussian sum" else exponent.logsumexp(axis=1)

        def expected(x: Array, y: Array, name: str = name) -> Array:
            squares = ((x[:_EXAMINED, None].astype(np.float64) - y) ** 2).sum(axis=2)
            sums: Array = np.exp(-squares).sum(axis=1, keepdims=True)
            return sums if name == "Gaussian sum" else np.log(sums)

        words = f"{name}, D=3, {size:,} x {size:,}"
        yield Case(words, (x, y), call, expected, 0, itemgetter(slice(_EXAMINED)))


def _user_scans(n: int, on_cpu: bool, rng: np.random.Generator) -> Iterator[Case]:
    updates: dict[str, Callable[[Any, Any], Any]] = {
        "average": lambda s, x: 0.9 * s + 0.1 * x, "tanh": lambda s, x: np.tanh(s + x)
    }  # fmt: skip
    x = rng.random((n // 4096, 4096), np.float32)
    out: dict[str, Any] = {"out": np.zeros_like(x)} if on_cpu else {}
    head = (slice(_EXAMINED),)
    for name, update in updates.items():
        call = partial(upsweep.scan, update, 0.0, **out)
        loop = partial(_of_head, partial(reference.scan, update, 0.0), head)
        known = {"upsweep.discounted_cumsum": partial(upsweep.discounted_cumsum, gamma=0.9, axis=0, **out)}
        yield Case(
            f"scan by an update: {name} {len(x):,} x {x.shape[1]:,} axis 0", (x,), call, loop, 2 * x.nbytes,
            itemgetter(head), peers=dict(known) if name == "average" else {},
        )  # fmt: skip
