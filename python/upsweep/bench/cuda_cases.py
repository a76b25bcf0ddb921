"""What is measured on a GPU, and what each figure should reach. Data only: needs neither torch nor a GPU.

The bars of fractions are of a copy of the same minimal bytes: a gated recurrence reads two arrays and writes
one, a discounted sum reads one and writes one; what a block does to a state writes none. Forward and backward
together move eight, the forward three and the backward five (it reads the gradient, the gates and the states, and
writes two gradients). The bars of peers are the peer's time over upsweep's, both from one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["BASELINE", "GATED", "GRADIENTS", "ITEMSIZES", "Case", "cases"]

_GATED, _DISCOUNTED, _SUM = "linear_recurrence", "discounted_cumsum", "cumulative_sum"
ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}

GATED = ("fpscan", "accelerated-scan", "accelerated-scan Triton", "associative_scan")
GRADIENTS = GATED[:3]
BASELINE = "Hillis-Steele"  # in plain torch operations, as in fpscan's benchmark

_MODEL = (8, 1536)  # batch and width of a language model, in fpscan's and accelerated-scan's figures
_MODEL_ELEMENTS = 8 * 1536 * 2048
_WITHIN = 1 / 1.05  # an odd length may cost an element 5 % more than a power of two
_LATENCY = _HOST = 8.0  # microseconds
_QUICK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Case:
    """One call to time.

    `figure` says what the bar is about: "of copy" a fraction of a copy's speed, "us" the microseconds of
    device time, "us host" those of the calling thread, "per element" the time an element takes in `versus` over
    what it takes in `shape`. `peers` are pairs of a name and its own bar.
    """

    operation: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    bar: float | None = None
    figure: str = "of copy"
    axis: int = -1
    gamma: float = 0.99
    window: int | None = None
    gradients: bool = False
    carry: bool = False  # what the block does to a state
    peers: tuple[tuple[str, float | None], ...] = ()
    versus: tuple[int, ...] | None = None

    @property
    def gated(self) -> bool:
        return self.operation == _GATED

    @property
    def name(self) -> str:
        words = [self._called, _sizes(self.shape)]
        words += [f"axis {self.axis}"] * (self.axis != -1) + ["forward and backward"] * self.gradients
        words += [f"window={self.window}"] * (self.window is not None)
        words += ["device time"] * (self.figure == "us") + ["host time"] * (self.figure == "us host")
        if self.versus is not None:
            words.append(f"per element of {_sizes(self.versus)}")
        return " ".join(words)

    @property
    def _called(self) -> str:
        return f"{self.operation}_carry" if self.carry else self.operation

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @property
    def family(self) -> str:
        """What cases that differ in their length only have in common."""
        places = list(self.shape)
        places[self.axis] = 0
        sizes = " x ".join(f"{size:,}" if size else "n" for size in places)
        words = [self._called, sizes] + ["forward and backward"] * self.gradients
        words += [f"window={self.window}"] * (self.window is not None)
        return f"{' '.join(words)}, {self.dtype}"

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """The fewest bytes that the call can move."""
        arrays = 8 if self.gradients else (3 if self.gated else 2) - self.carry
        return self.n_elements * ITEMSIZES[self.dtype] * arrays


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def _ahead(names: tuple[str, ...], bar: float = 1.0) -> tuple[tuple[str, float], ...]:
    return tuple((name, bar) for name in names)


def _forward() -> Iterator[Case]:
    gated = _ahead(GATED)
    half = (0.87, 0.93, 0.96)
    for dtype, bars in (("float32", (0.95, 0.99, 1.00)), ("bfloat16", half), ("float16", half)):
        peers = () if dtype == "float16" else gated
        if peers:
            yield Case(_GATED, (*_MODEL, 512), dtype, peers=peers)
        for length, bar in zip((2048, 8192, 32768), bars):
            yield Case(_GATED, (*_MODEL, length), dtype, bar, peers=peers)
    for length in (32, 1024, 4096, 16384, 32768, 65536):
        ten_percent = length in (4096, 16384, 65536)
        peers = (("fpscan", 1.1 if ten_percent else 1.0), *gated[1:])
        yield Case(_GATED, (2, 256, length), peers=peers)
    yield Case(_GATED, (1, 1, 65536), peers=gated)
    yield Case(_GATED, (1, 16, 65536), peers=gated)


def _layouts() -> Iterator[Case]:
    yield Case(_GATED, (8, 2048, 1536), bar=0.85, axis=1)
    yield Case(_GATED, (16, 16384, 128), bar=0.85, axis=1)
    yield Case(_GATED, (1_000_000, 32), bar=0.85)
    yield Case(_GATED, (200_000, 128), bar=0.85)
    for length, power in ((3000, 2048), (10007, 8192), (100003, 131072)):
        shapes = [(_MODEL_ELEMENTS // n, n) for n in (length, power)]
        yield Case(_GATED, shapes[0], bar=_WITHIN, figure="per element", versus=shapes[1])


def _gradients() -> Iterator[Case]:
    peers = _ahead(GRADIENTS)
    for dtype, bar in (("float32", 0.94), ("bfloat16", 0.85)):
        yield Case(_GATED, (*_MODEL, 2048), dtype, gradients=True, peers=peers)
        yield Case(_GATED, (*_MODEL, 8192), dtype, bar, gradients=True, peers=peers)
    for length in (1024, 32768):
        yield Case(_GATED, (2, 256, length), gradients=True, peers=peers)


def _sums() -> Iterator[Case]:
    shapes = [(1, 100_000), (1, 10_000_000), (64, 100_000), (4096, 1024), (65535, 64), (1024, 65536)]
    bars = {(4096, 1024): 0.85, (1024, 65536): 0.85}
    for shape in shapes:
        yield Case(_DISCOUNTED, shape, bar=bars.get(shape), peers=_ahead(("torch-discounted-cumsum",)))
        yield Case(_SUM, shape, peers=_ahead(("torch.cumsum",)))
    yield Case(_DISCOUNTED, (65536, 64), bar=0.85)
    yield Case(_DISCOUNTED, (1, 1 << 28), bar=0.85)
    yield Case(_SUM, (1, 1 << 28), peers=_ahead(("torch.cumsum",)))
    yield Case(_DISCOUNTED, (16, 524288), bar=0.75)
    yield Case(_DISCOUNTED, (1, 10_000_000), window=1000)


def _carries() -> Iterator[Case]:
    for shape in ((256, 1 << 20), (1, 1 << 28)):
        for operation in (_GATED, _DISCOUNTED, _SUM):
            yield Case(operation, shape, bar=0.85, carry=True)
    yield Case(_GATED, (1 << 14, 1 << 14), bar=0.85, axis=0, carry=True)
    yield Case(_GATED, (1_000_000, 32), carry=True)


def _calls() -> Iterator[Case]:
    yield Case(_GATED, (1, 65536), bar=_LATENCY, figure="us")
    yield Case(_DISCOUNTED, (1, 100_000), bar=_LATENCY, figure="us")
    for operation in (_GATED, _DISCOUNTED, _SUM):
        yield Case(operation, (16, 128), bar=_HOST, figure="us host")


def cases(quick: bool = False) -> list[Case]:
    """Every case; `quick`: those of at most 2^24 elements, without what has to be compiled."""
    found = [*_forward(), *_layouts(), *_gradients(), *_sums(), *_carries(), *_calls()]
    if not quick:
        return found
    small = [case for case in found if case.n_elements <= _QUICK_ELEMENTS]
    return [replace(case, peers=tuple(p for p in case.peers if p[0] != "associative_scan")) for case in small]
