"""Scans by an update that are measured on a GPU, and what each figure should reach. Needs neither torch nor a GPU.

A scan reads its inputs once and writes its outputs: its fraction is that of a copy of as many bytes. What is
affine in its state is held against the function that a user would have for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["UPDATES", "Case", "cases"]


def total(s: Any, x: Any) -> Any:
    """A sum."""
    return s + x


def average(s: Any, x: Any) -> Any:
    """An exponential moving average."""
    return 0.9 * s + 0.1 * x


def cell(s: Any, x: Any) -> Any:
    """A recurrence that no algebra makes parallel."""
    return np.tanh(s + x)


def gated(s: Any, x: Any) -> Any:
    """A recurrence of gates and tokens."""
    return x[0] * s + x[1]


def decayed(s: Any, x: Any) -> Any:
    """One whose gates and tokens are made in the update."""
    return np.exp(-x[0]) * s + (1 - x[0]) * x[1]


def mixture(s: Any, x: Any) -> Any:
    """A moving average whose weight changes from step to step."""
    return x[0] * s + (1 - x[0]) * x[1]


def holt(s: Any, x: Any) -> Any:
    """A level and a trend; the forecast."""
    level, trend = s
    new = 0.3 * x + 0.7 * (level + trend)
    return (new, 0.9 * trend + 0.1 * (new - level)), level + trend


UPDATES = {
    "sum": total, "average": average, "tanh": cell, "gates and tokens": gated, "decay": decayed,
    "mixture": mixture, "Holt": holt,
}  # fmt: skip
_WITHIN = 1 / 1.2  # of the time of linear_recurrence


@dataclass(frozen=True)
class Case:
    """One call to time.

    `figure` says what the bar is about: "of copy" a fraction of a copy's speed, "of linear" the time of
    `linear_recurrence` or `discounted_cumsum`, whichever does the same or as much, over that of the scan.
    """

    update: str
    shape: tuple[int, ...]
    axis: int = 0
    dtype: str = "float32"
    bar: float | None = None
    figure: str = "of copy"
    gradients: bool = False
    peers: tuple[tuple[str, float | None], ...] = ()

    @property
    def n_inputs(self) -> int:
        return 2 if self.update in ("gates and tokens", "decay", "mixture") else 1

    @property
    def n_states(self) -> int:
        return 2 if self.update == "Holt" else 1

    @property
    def name(self) -> str:
        sizes = ", ".join(f"{n:,}" for n in self.shape)
        words = [self.update, f"({sizes})"] + [f"axis {self.axis}"] * (self.axis != 0)
        return " ".join(words + ["forward and backward"] * self.gradients)

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @property
    def family(self) -> str:
        """What cases that differ in their length only have in common."""
        return f"{self.update}, {self.dtype}, axis {self.axis}"

    @property
    def n_bytes(self) -> int:
        """The least that is read and written; backward reads inputs, states and a gradient, and writes others."""
        size = {"float32": 4, "float64": 8, "float16": 2}[self.dtype] * math.prod(self.shape)
        backward = 2 * self.n_inputs + self.n_states + 1 if self.gradients else 0
        return size * (self.n_inputs + 1 + backward)


def cases(quick: bool = False) -> Iterator[Case]:
    """Every case; `quick`: small ones."""
    if quick:
        yield Case("sum", (1024, 65_536), bar=0.8)
        yield Case("tanh", (512, 65_536), bar=0.6)
        yield Case("tanh", (65_536, 512), axis=1)
        yield Case("average", (1_000_000,), figure="of linear", bar=_WITHIN)
        return
    yield Case("sum", (16_384, 65_536), bar=0.8)
    yield Case("tanh", (4096, 65_536), bar=0.6)
    yield Case("tanh", (65_536, 4096), axis=1)
    yield Case("tanh", (4096, 65_536), dtype="float16")
    yield Case("tanh", (4096, 4096))
    yield Case("tanh", (1024, 65_536), gradients=True)
    yield Case("Holt", (4096, 65_536))
    yield Case("decay", (4096, 65_536), figure="of linear", bar=_WITHIN)
    for shape, axis in (((4096, 12_288), 0), ((12_288, 4096), 1), ((10_000_000,), 0), ((65_536, 64), 0)):
        yield Case("gates and tokens", shape, axis, figure="of linear", bar=_WITHIN)
    for shape, axis in (
        ((2**28,), 0), ((10_000_000,), 0), ((100_000,), 0), ((16, 524_288), 1), ((64, 100_000), 1),
        ((1024, 16_384), 1), ((100_000, 64), 0), ((4096, 65_536), 0),
    ):  # fmt: skip
        yield Case("average", shape, axis, figure="of linear", bar=_WITHIN)
    for shape, axis in (((2**27,), 0), ((10_000_000,), 0), ((16, 524_288), 1), ((100_000, 64), 0)):
        yield Case("mixture", shape, axis, figure="of linear", bar=_WITHIN)
