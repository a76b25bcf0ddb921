"""What a user would write today, timed beside upsweep in one run; and the cost of a small call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep.bench.harness import Call, measure, microseconds
from upsweep.bench.report import Row

__all__ = ["lfilter", "numba_loop", "optional", "peers", "small_calls"]

Array = NDArray[Any]

_GAMMA = 0.99
_MORE_THAN_LFILTER = 10.0
_MICROSECONDS_MORE = 3.0


def optional(module: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def lfilter(x: Array, gamma: float) -> Callable[[], Array] | None:
    """A discounted sum as a call of scipy's filter, in x's dtype; None without scipy."""
    signal = optional("scipy.signal")
    if signal is None:
        return None
    # Coefficients in x's dtype: as Python lists they would make the filter float64, and half as fast.
    return partial(signal.lfilter, np.ones(1, x.dtype), np.array([1, -gamma], x.dtype), x)


def numba_loop(x: Array, gamma: float, out: Array) -> Call | None:
    """The plain loop over one line, compiled by numba; None without numba."""
    numba = optional("numba")
    if numba is None:
        return None

    def loop(x: Array, gamma: float, out: Array) -> None:
        state = 0.0
        for t in range(x.size):
            state = gamma * state + x[t]
            out[t] = state

    return partial(numba.njit(loop), x, gamma, out)


def peers(quick: bool = False) -> list[Row]:
    """One line of float32: the fastest samples of each, as multiples of upsweep's time."""
    x = np.random.default_rng(0).random(2_000_000 if quick else 10_000_000, np.float32)
    out = np.zeros_like(x)
    found: dict[str, Call | None] = {
        "upsweep.discounted_cumsum": lambda: upsweep.discounted_cumsum(x, _GAMMA, out=out),
        "upsweep.cumulative_sum": lambda: upsweep.cumulative_sum(x, out=out),
        "scipy lfilter": lfilter(x, _GAMMA),
        "np.cumsum, out=": lambda: np.cumsum(x, out=out),
        "numba loop, one thread": None if quick else numba_loop(x, _GAMMA, out),
    }
    samples = measure({name: call for name, call in found.items() if call is not None}, rounds=3, burst=2)
    rows = []
    for name, ours in (
        ("scipy lfilter", "upsweep.discounted_cumsum"),
        ("numba loop, one thread", "upsweep.discounted_cumsum"),
        ("np.cumsum, out=", "upsweep.cumulative_sum"),
    ):
        if name in samples.seconds:
            ratio = samples.best(name) / samples.best(ours)
            bar = _MORE_THAN_LFILTER if name == "scipy lfilter" else None
            case = f"{name} against {ours}, {x.size:,}"
            rows.append(Row(case, "float32", samples.best(name), ratio, "x", bar))
    return rows


def small_calls(quick: bool = False) -> list[Row]:
    """What a call on 128 elements costs beyond np.cumsum's, in microseconds."""
    rows = []
    for dtype in (np.float32, np.float64):
        x = np.random.default_rng(0).random(128).astype(dtype)
        methods: dict[str, Call] = {
            "np.cumsum": partial(np.cumsum, x),
            "discounted_cumsum": partial(upsweep.discounted_cumsum, x, _GAMMA),
            "linear_recurrence": partial(upsweep.linear_recurrence, x, x),
            "cumulative_sum": partial(upsweep.cumulative_sum, x),
        }
        times = microseconds(methods, rounds=5 if quick else 15)
        for name in list(methods)[1:]:
            # The bar is for discounted and gated calls; cumulative_sum has no way past the Python layers.
            bar = None if name == "cumulative_sum" else _MICROSECONDS_MORE
            more = times[name] - times["np.cumsum"]
            note = f"np.cumsum {times['np.cumsum']:.2f} us"
            case = f"{name} 128, more than np.cumsum"
            rows.append(Row(case, x.dtype.name, times[name] / 1e6, more, "us", bar, note=note))
    return rows
