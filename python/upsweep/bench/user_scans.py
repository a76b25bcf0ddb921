"""Scans by a user's update, beside numba's loops, scipy, discounted_cumsum and a copy of the same bytes.

Each answer is compared with numpy's loop over its first steps before it is timed. The figure is the time of what
it is compared with over upsweep's. All write into memory that is there (`out=`): new memory of many MiB costs as
much as the scan does, whoever asks for it. Filters are the exception, since scipy's has no `out`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep import reference
from upsweep.bench import scan_peers, te_programs
from upsweep.bench.harness import Call, copiers, measure
from upsweep.bench.peers import optional
from upsweep.bench.report import Row

__all__ = ["Case", "cases", "numba_loop", "run"]

Array = NDArray[Any]
Update = Callable[[Any, Any], Any]

_CHECKED = 300  # steps that numpy's loop is asked for
_LFILTER = ((0.06745527, 0.13491055, 0.06745527), (1.0, -1.1429805, 0.4128016))


def total(s: Any, x: Any) -> Any:
    """A sum."""
    return s + x


def average(s: Any, x: Any) -> Any:
    """An exponential moving average."""
    return 0.9 * s + 0.1 * x


def cell(s: Any, x: Any) -> Any:
    """A recurrence that no algebra makes parallel."""
    return np.tanh(s + x)


def garch(s: Any, x: Any) -> Any:
    """A variance that follows its shocks."""
    return 0.1 + 0.2 * x * x + 0.7 * s


@dataclass(frozen=True)
class Case:
    """One scan to time, and what its time is compared with: "numba", "copy" or "discounted_cumsum"."""

    name: str
    update: Update
    shape: tuple[int, ...]
    peer: str
    bar: float
    axis: int = 0
    dtype: str = "float32"

    def data(self) -> Array:
        return _data(self.shape, self.dtype)

    def ours(self) -> Callable[[], Array]:
        out = np.zeros_like(self.data())
        return partial(upsweep.scan, self.update, 0.0, self.data(), axis=self.axis, out=out)


@cache
def _data(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def cases(quick: bool = False) -> list[Case]:
    """Every case; `quick`: without the large ones."""
    found = [
        Case("sum (1024, 1024)", total, (1024, 1024), "copy", 0.9),
        Case("sum (100,000, 16)", total, (100_000, 16), "copy", 0.83),
        Case("tanh (1000, 4096)", cell, (1000, 4096), "numba", 6.0),
        Case("tanh (4096, 1000) axis 1", cell, (4096, 1000), "numba", 6.0, axis=1),
    ]
    if quick:
        return found
    return [
        *found,
        Case("sum (4096, 8192)", total, (4096, 8192), "copy", 0.8),
        Case("average of a line of 10,000,000", average, (10_000_000,), "discounted_cumsum", 0.83),
        Case("GARCH (1000, 10,000)", garch, (1000, 10_000), "numba", 1.0, dtype="float64"),
        Case("GARCH (10,000, 1000) axis 1", garch, (10_000, 1000), "numba", 1.0, axis=1, dtype="float64"),
    ]


def numba_loop(case: Case) -> Call | None:
    """A loop over time of one column after another, on all threads; None without numba."""
    numba = optional("numba")
    if numba is None:
        return None
    step, prange = numba.njit(case.update), numba.prange
    x = case.data().reshape(case.shape if len(case.shape) > 1 else (-1, 1))
    y = np.empty_like(x)

    def along_columns(x: Array, y: Array) -> None:
        for column in prange(x.shape[1]):
            state = x[0, 0] * 0
            for t in range(x.shape[0]):
                state = step(state, x[t, column])
                y[t, column] = state

    def along_rows(x: Array, y: Array) -> None:
        for column in prange(x.shape[0]):
            state = x[0, 0] * 0
            for t in range(x.shape[1]):
                state = step(state, x[column, t])
                y[column, t] = state

    return partial(numba.njit(parallel=True)(along_rows if case.axis else along_columns), x, y)


def _is_right(case: Case) -> bool:
    first = (slice(None),) * case.axis + (slice(_CHECKED),)
    expected = reference.scan(case.update, 0.0, case.data()[first], axis=case.axis)
    tolerance = 1e-4 if case.dtype == "float32" else 1e-10
    return bool(np.allclose(case.ours()()[first], expected, rtol=tolerance, atol=tolerance))


def _row(case: Case, n_threads: int, rounds: int) -> Row:
    if not _is_right(case):
        return Row(case.name, case.dtype, None, None, "x", case.bar, note="the answer is wrong: not timed")
    x = case.data()
    methods: dict[str, Call] = {"upsweep": case.ours(), **copiers(x, np.zeros_like(x), n_threads)}
    peer = None
    if case.peer == "numba":
        peer = numba_loop(case)
    elif case.peer == "discounted_cumsum":
        peer = partial(upsweep.discounted_cumsum, x, 0.9, out=np.zeros_like(x))
    if peer is not None:
        methods["peer"] = peer
    samples = measure(methods, rounds, burst=2)
    ours, copy = samples.best("upsweep"), samples.best(samples.fastest("copy"))
    figure = copy / ours if case.peer == "copy" else samples.best("peer") / ours if peer is not None else None
    note = f"copy {copy * 1e3:.2f} ms"
    if peer is not None:
        note = f"{case.peer} {samples.best('peer') * 1e3:.2f}, {note}"
    return Row(
        case.name, case.dtype, ours, figure, "of copy" if case.peer == "copy" else "x", case.bar, 2 * x.nbytes,
        note=note, busy=None if samples.quiet else samples.others,
    )  # fmt: skip


def _filter_row(rounds: int) -> Row | None:
    """One long line through a filter of order 2, beside scipy's."""
    signal = optional("scipy.signal")
    if signal is None:
        return None
    b, a = _LFILTER
    x = _data((10_000_000,), "float64")
    if not np.allclose(upsweep.lfilter(b, a, x), signal.lfilter(b, a, x), rtol=1e-8, atol=1e-8):
        return Row("lfilter of order 2", "float64", None, None, "x", 7.0, note="the answer is wrong: not timed")
    methods: dict[str, Call] = {
        "ours": lambda: upsweep.lfilter(b, a, x),
        "scipy": lambda: signal.lfilter(b, a, x),
    }
    samples = measure(methods, rounds, burst=2)
    ours, theirs = samples.best("ours"), samples.best("scipy")
    return Row(
        "lfilter of order 2, 10,000,000", "float64", ours, theirs / ours, "x", 7.0, 2 * x.nbytes,
        note=f"scipy {theirs * 1e3:.1f} ms", busy=None if samples.quiet else samples.others,
    )  # fmt: skip


def run(
    only: str = "",
    quick: bool = False,
    n_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the cases whose name and dtype contain `only`."""
    before = upsweep.get_num_threads()
    if n_threads is not None:
        upsweep.set_num_threads(n_threads)
    chosen = [case for case in cases(quick) if only in f"{case.name}, {case.dtype}"]
    rows = []
    try:
        for case in chosen:
            rows.append(_row(case, upsweep.get_num_threads(), rounds=2 if quick else 4))
            if progress is not None:
                progress(len(rows), len(chosen))
        if not quick and only in "lfilter of order 2, 10,000,000, float64":
            rows += [row for row in (_filter_row(rounds=3),) if row is not None]
        rows += scan_peers.rows(only, quick)
        rows += te_programs.rows(only, quick, upsweep.get_num_threads(), progress)
    finally:
        upsweep.set_num_threads(before)
    return rows
