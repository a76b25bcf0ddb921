"""The table of ``asv_bench/run.py``: the rows of ``upsweep.bench.report`` with their thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from upsweep._utils.progress import format_table
from upsweep.bench.report import Row, time_text

__all__ = ["print_table"]


def _cells(row: Row) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "MISSED"}[row.met] if row.contention is None else "BUSY"
    threshold = "" if row.threshold is None else f"{row.threshold:.3g}"
    rate = "" if row.rate is None else f"{row.rate:.1f}"
    value = "" if row.value is None else f"{row.value:.2f} {row.unit}"
    return row.case, row.dtype, time_text(row.seconds), rate, value, threshold, met, row.note


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows under column titles, and how many thresholds were met."""
    head = ("case", "dtype", "time", "GB/s", "value", "threshold", "", "note")
    print(format_table([head, *map(_cells, rows)], "<<>><<<<"))
    judged = [row for row in rows if row.met is not None]
    if judged:
        print(f"\n{sum(bool(row.met) for row in judged)} of {len(judged)} thresholds met")
    busy = [row.contention for row in rows if row.contention is not None]
    if busy:
        print(f"{len(busy)} rows are not reliable: other processes used {min(busy):.0%} of a core or more")
