"""Scans against a copy of the same bytes, and against what a user would write instead.

A case's fraction is (time of the fastest copy) / (time of the scan), scaled by the bytes that each moves
where these differ: with ``reset=`` a scan also reads one byte an element. A discounted sum is held against
copies, a gated recurrence against a + b -> c. Arrays come from ``np.empty``, as a user's do, and results
go to ``out=``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep.bench.harness import Call, Samples, adders, copiers, measure
from upsweep.bench.report import Row

__all__ = ["Case", "cases", "measure_group", "prepare", "run"]

Array = NDArray[Any]

_OPERATIONS = ("discounted_cumsum", "linear_recurrence")
_GAMMA = 0.99
_LINE = (1, 10_000_000)


@dataclass(frozen=True)
class Case:
    """One scan to time. `data` "impulse" is a one, then zeros: its bar is normal data's time over its own."""

    operation: str  # discounted_cumsum or linear_recurrence
    shape: tuple[int, ...]
    dtype: str
    bar: float
    axis: int = -1
    gamma: float = _GAMMA
    reverse: bool = False
    exclusive: bool = False
    window: int | None = None
    reset: bool = False
    data: str = "normal"

    @property
    def gated(self) -> bool:
        return self.operation == "linear_recurrence"

    @property
    def name(self) -> str:
        sizes = " x ".join(f"{size:,}" for size in self.shape)
        words = [self.operation, sizes if self.axis == -1 else f"{sizes} axis {self.axis}"]
        words += ["reverse"] * self.reverse + ["exclusive"] * self.exclusive + ["reset="] * self.reset
        words += [f"window={self.window}"] * (self.window is not None)
        words += [f"gamma={self.gamma:g}"] * (self.gamma != _GAMMA)
        words += ["impulse then zeros / normal"] * (self.data == "impulse")
        return " ".join(words)

    @property
    def arrays(self) -> tuple[tuple[int, ...], str, int]:
        """Cases with the same arrays are measured together."""
        return self.shape, self.dtype, self.axis

    @property
    def n_bytes(self) -> int:
        """Read and written: x, gates, reset and y, each once."""
        itemsize = np.dtype(self.dtype).itemsize
        return int(np.prod(self.shape)) * ((3 if self.gated else 2) * itemsize + self.reset)


def cases(quick: bool = False) -> list[Case]:
    """Every case, those with the same arrays side by side; `quick`: float32 without the largest arrays."""
    found = []
    for dtype in ("float32",) if quick else ("float32", "float64"):
        for operation in _OPERATIONS:
            line = 0.72 if dtype == "float32" else 0.80
            found += [
                Case(operation, _LINE, dtype, line),
                Case(operation, _LINE, dtype, line, reverse=True),
                Case(operation, _LINE, dtype, 0.65, exclusive=True),
                Case(operation, _LINE, dtype, 0.65, reset=True),
                Case(operation, _LINE, dtype, 0.8, data="impulse"),
                Case(operation, (64, 100_000), dtype, 0.80),
                Case(operation, (4096, 1024), dtype, 0.80),
                Case(operation, (100_000, 64), dtype, 0.70),
                Case(operation, (1024, 4096), dtype, 0.80, axis=0),
                Case(operation, (64, 1000, 100), dtype, 0.70, axis=1),
            ]
            if not quick:
                found += [
                    Case(operation, (1_000_000, 32), dtype, 0.80, axis=0),
                    Case(operation, (4096, 8192), dtype, 0.80, axis=0),
                ]
        found += [
            Case("discounted_cumsum", _LINE, dtype, 0.70, gamma=0.9999),
            Case("discounted_cumsum", _LINE, dtype, 0.70, gamma=1.0),
            Case("discounted_cumsum", _LINE, dtype, 0.40, window=1000),
        ]
    found += [Case(operation, _LINE, "float16", 0.5) for operation in _OPERATIONS]
    order = {case.arrays: place for place, case in reversed(list(enumerate(found)))}
    return sorted(found, key=lambda case: order[case.arrays])


class _Arrays:
    """The arrays of a group of cases, allocated once."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        rng = np.random.default_rng(0)
        self.x = np.empty(shape, dtype)
        self.gates = np.empty(shape, dtype)
        self.out = np.zeros(shape, dtype)  # written to, so that its pages exist
        parts = (np.array_split(array.reshape(-1), 16) for array in (self.x, self.gates))
        for x, gates in zip(*parts):  # in parts: float32 numbers on the way would double the memory needed
            x[...] = rng.random(x.shape, np.float32)
            gates[...] = 0.9 + 0.1 * rng.random(gates.shape, np.float32)
        self._rng = rng
        self._made: dict[str, Array] = {}

    def get(self, name: str) -> Array:
        """The arrays that only some cases need."""
        if name not in self._made:
            if name == "reset":
                self._made[name] = self._rng.random(self.x.shape, np.float32) < 1e-4
            else:
                impulse = np.zeros_like(self.x)
                impulse[..., 0] = 1
                self._made[name] = impulse
        return self._made[name]


def _call(case: Case, arrays: _Arrays, n_threads: int) -> Call:
    x = arrays.get("impulse") if case.data == "impulse" else arrays.x
    keywords: dict[str, Any] = {"axis": case.axis, "out": arrays.out, "n_threads": n_threads}
    keywords.update({name: True for name in ("reverse", "exclusive") if getattr(case, name)})
    if case.reset:
        keywords["reset"] = arrays.get("reset")
    if case.window is not None:
        keywords["window"] = case.window
    if case.gated:
        return lambda: upsweep.linear_recurrence(arrays.gates, x, **keywords)
    return lambda: upsweep.discounted_cumsum(x, case.gamma, **keywords)


def prepare(case: Case, n_threads: int) -> Call:
    """The case's call, on arrays of its own."""
    return _call(case, _Arrays(case.shape, case.dtype), n_threads)


def measure_group(group: list[Case], n_threads: int, rounds: int) -> Iterator[Row]:
    """Measure cases with the same arrays, and the passes they are held against, in turns."""
    shape, dtype, _ = group[0].arrays
    arrays = _Arrays(shape, dtype)
    methods: dict[str, Call] = {}
    if not all(case.gated for case in group):
        methods |= copiers(arrays.x, arrays.out, n_threads)
    if any(case.gated for case in group):
        methods |= adders(arrays.gates, arrays.x, arrays.out, n_threads)
    for case in group:
        if case.data == "impulse":
            methods[f"normal {case.operation}"] = _call(replace(case, data="normal"), arrays, n_threads)
        methods[case.name] = _call(case, arrays, n_threads)
    samples = measure(methods, rounds)
    for case in group:
        if case.data == "impulse":
            yield _row(case, samples, f"normal {case.operation}", "x", 1)
            continue
        yardstick = "add" if case.gated else "copy"
        items = int(np.prod(shape)) * np.dtype(dtype).itemsize * (3 if case.gated else 2)
        yield _row(case, samples, yardstick, "of a+b" if case.gated else "of copy", case.n_bytes / items)


def _row(case: Case, samples: Samples, yardstick: str, unit: str, scale: float) -> Row:
    fastest = samples.fastest(yardstick)
    seconds = samples.best(case.name)
    note = "" if unit == "x" else f"{fastest} {samples.best(fastest) * 1e3:.3f} ms"
    return Row(
        case.name,
        case.dtype,
        seconds,
        samples.best(fastest) / seconds * scale,
        unit,
        case.bar,
        case.n_bytes,
        samples.median_ratio(yardstick, case.name) * scale,
        note,
        busy=None if samples.quiet else samples.others,
    )


def run(
    only: str = "",
    quick: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the cases whose name and dtype contain `only`, group by group."""
    chosen = [case for case in cases(quick) if only in f"{case.name}, {case.dtype}"]
    n_threads = upsweep.get_num_threads() if n_threads is None else n_threads
    rows: list[Row] = []
    for _, group in groupby(chosen, key=lambda case: case.arrays):
        rows += measure_group(list(group), n_threads, rounds=3 if quick else 7)
        if progress is not None:
            progress(len(rows), len(chosen))
    return rows
