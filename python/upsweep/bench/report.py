"""The rows of a benchmark, printed as a table or written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from upsweep._utils.progress import format_table


@dataclass(frozen=True)
class Row:
    """One measured case.

    `value` is what the threshold applies to, in `unit`: with "of copy" and "of a+b" the speed as a fraction of a
    copy's, with "x" a ratio of times, with "us" and "ms" micro- and milliseconds (less is better), with
    "Gpairs/s/core" a rate. A row that could not be timed has neither seconds nor a value; its note says why.
    """

    case: str
    dtype: str
    seconds: float | None
    value: float | None
    unit: str
    threshold: float | None = None
    n_bytes: int | None = None
    median: float | None = None  # the same ratio as the median of the rounds
    note: str = ""
    contention: float | None = None  # the share of a core that other processes used, where it was too much
    method: str = ""  # whose time it is, where rows are compared with each other
    family: str = ""  # shared by rows that differ only in length
    length: int | None = None
    p90: float | None = None  # seconds; the 90th percentile of the samples

    @property
    def met(self) -> bool | None:
        if self.threshold is None or self.value is None or self.contention is not None:
            return None
        return self.value <= self.threshold if self.unit in ("us", "ms") else self.value >= self.threshold

    @property
    def rate(self) -> float | None:
        """Bytes read and written, in GB/s."""
        return None if self.n_bytes is None or not self.seconds else self.n_bytes / self.seconds / 1e9


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.2f} us"


def _cells(row: Row) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "MISSED"}[row.met] if row.contention is None else "BUSY"
    threshold = "" if row.threshold is None else f"{row.threshold:.3g}"
    rate = "" if row.rate is None else f"{row.rate:.1f}"
    value = "" if row.value is None else f"{row.value:.2f} {row.unit}"
    return row.case, row.dtype, _time(row.seconds), rate, value, threshold, met, row.note


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


def write_json(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write the machine and every field of the rows."""
    fields = [{**asdict(row), "rate": row.rate, "met": row.met} for row in rows]
    path.write_text(json.dumps({"machine": machine, "rows": fields}, indent=1) + "\n")
