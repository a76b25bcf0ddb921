"""The rows of a benchmark, printed as the table of the command or written as JSON."""

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


def time_text(seconds: float | None) -> str:
    """A time in milliseconds, or microseconds where it is short."""
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.2f} us"


_LEGENDS = {
    "fraction of a copy": "the speed over that of a memory copy of the same bytes;\n"
    "  small arrays, as with --quick, are copied within the caches, where a copy is several times faster",
    "Gpairs/s": "billions of pairs of points a second",
    "BUSY": "other processes used the cores meanwhile; measure such rows again on a quiet machine",
}


def print_cases(rows: Sequence[Row]) -> None:
    """Print a line for each case with the comparison with a copy and with another package, and what it means.

    The row of a case is followed by that of its peer, if it has one.
    """
    heads = {"of copy": "fraction of a copy"}
    measures = list(dict.fromkeys(heads.get(row.unit, row.unit) for row in rows if row.method == "upsweep"))
    has_peers = any(row.method != "upsweep" for row in rows)
    table = [("case", "dtype", "time", "GB/s", *measures, *(("compared with", "times faster") * has_peers), "")]
    for row, after in zip(rows, [*rows[1:], None]):
        if row.method != "upsweep":
            continue
        values = (f"{row.value:.2f}" if heads.get(row.unit, row.unit) == measure else "" for measure in measures)
        peer = ("", "") if after is None or after.method == "upsweep" else (after.method, f"{after.value:.1f}")
        status = "" if row.contention is None else "BUSY"
        rate = "" if row.rate is None else f"{row.rate:.1f}"
        table.append((row.case, row.dtype, time_text(row.seconds), rate, *values, *(peer * has_peers), status))
    print(format_table(table, f"<<>>{'>' * len(measures)}{'<>' * has_peers}<"))
    print()
    for word, meaning in _LEGENDS.items():
        if any(word in cells for cells in table):
            print(f"{word}: {meaning}")


def write_json(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write the machine and every field of the rows."""
    fields = [{**asdict(row), "rate": row.rate, "met": row.met} for row in rows]
    path.write_text(json.dumps({"machine": machine, "rows": fields}, indent=1) + "\n")
