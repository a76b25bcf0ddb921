"""The main rows of each operation with 1, 2, 4, ... threads.

The value of a row that memory limits is its fraction of a copy, or of a + b -> c, on as many threads. The note
says how many times as fast as on one thread the call is, and what the copy takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from upsweep.bench.report import Row

from upsweep_bench import counts, histograms, pairs, scans, te_programs, user_scans

__all__ = ["cases", "rows", "thread_counts"]

_LINE, _SQUARE = (1, 100_000_000), (10_000, 10_000)
_OTHERS = (
    "bincount 20,000,000 in 256 bins uniform, int64",
    "bincount 20,000,000 in 1,000,000 bins uniform, int64",
    "bincount 20,000,000 in 10,000 bins float64 weights uniform, int64",
    "histogram 20,000,000 in 100 bins uniform, float32",
    "tanh (1000, 4096), float32",
    "GARCH (1000, 10,000), float64",
    "lfilter of order 2, 10,000,000, float64",
    "Gaussian sum, D=3, float32",
    "argKmin(10), D=3, float32",
    "te LSTM, 128 hidden, batch 256, float32",
)


def cases(quick: bool = False, device: str = "cpu") -> list[Any]:
    """The main cases of all operations, without thresholds and peers; `quick`: of scans alone."""
    recurrences = ("discounted_cumsum", "linear_recurrence")
    chosen: list[Any] = [
        scans.Case(name, shape, axis=axis)
        for name in recurrences for shape, axis in ((_LINE, -1), (_SQUARE, -1), (_SQUARE, 0))
    ]  # fmt: skip
    chosen.append(scans.Case("cumulative_sum", _LINE, "int64"))
    if quick:
        return chosen
    modules: tuple[Any, ...] = (counts, histograms, user_scans, pairs, te_programs)
    labelled = {case.label: case for module in modules for case in module.cases(False, device)}
    return chosen + [replace(labelled[label], threshold=None, peers=()) for label in _OTHERS]


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def rows(by_threads: Mapping[int, Sequence[Row]]) -> list[Row]:
    """The rows of all numbers of threads, case by case, each with its speed over that of the first number."""
    return [
        replace(row, case=f"{row.case}, {n} thread{'s' * (n > 1)}", note=_note(measured[0], row))
        for measured in zip(*by_threads.values()) for n, row in zip(by_threads, measured)
    ]  # fmt: skip


def _note(first: Row, row: Row) -> str:
    speed = f"{first.seconds / row.seconds:.1f} times" if first.seconds and row.seconds else ""
    return "; ".join(filter(None, [speed, row.note]))
