"""The rows of a benchmark and how they are shown: a table, JSON, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "print_table", "write_json", "write_plot"]


@dataclass(frozen=True)
class Row:
    """One measured case.

    `figure` is what the bar is about, in words in `unit`: with "of copy" and "of a+b" the fraction of the
    yardstick's speed, with "x" a ratio of times, with "us" and "ms" micro- and milliseconds (where less is
    better), with "Gpairs/s/core" a rate. What could not be timed has neither seconds nor a figure, and a note
    that says why.
    """

    case: str
    dtype: str
    seconds: float | None
    figure: float | None
    unit: str
    bar: float | None = None
    n_bytes: int | None = None
    median: float | None = None  # the same figure as the median of the rounds
    note: str = ""
    busy: float | None = None  # the share of a core that other processes took, where it was too much
    method: str = ""  # whose time it is, where rows are compared with each other
    family: str = ""  # what rows that differ in length only have in common
    length: int | None = None
    p90: float | None = None  # seconds that nine of ten samples stay below

    @property
    def met(self) -> bool | None:
        if self.bar is None or self.figure is None or self.busy is not None:
            return None
        return self.figure <= self.bar if self.unit in ("us", "ms") else self.figure >= self.bar

    @property
    def rate(self) -> float | None:
        """Bytes read and written, in GB/s."""
        return None if self.n_bytes is None or not self.seconds else self.n_bytes / self.seconds / 1e9


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.2f} us"


def _cells(row: Row) -> tuple[str, ...]:
    met = {None: "", True: "met", False: "MISSED"}[row.met] if row.busy is None else "BUSY"
    bar = "" if row.bar is None else f"{row.bar:.3g}"
    rate = "" if row.rate is None else f"{row.rate:.1f}"
    figure = "" if row.figure is None else f"{row.figure:.2f} {row.unit}"
    return row.case, row.dtype, _time(row.seconds), rate, figure, bar, met, row.note


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows under their heads, and how many bars were met."""
    head = ("case", "dtype", "time", "GB/s", "figure", "bar", "", "note")
    table = [head, *map(_cells, rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(head))]
    for cells in table:
        left, right = cells[:2], cells[2:4]
        line = [f"{cell:<{width}}" for cell, width in zip(left, widths)]
        line += [f"{cell:>{width}}" for cell, width in zip(right, widths[2:])]
        line += [f"{cell:<{width}}" for cell, width in zip(cells[4:], widths[4:])]
        print("  ".join(line).rstrip())
    barred = [row for row in rows if row.met is not None]
    if barred:
        print(f"\n{sum(bool(row.met) for row in barred)} of {len(barred)} bars met")
    busy = [row.busy for row in rows if row.busy is not None]
    if busy:
        print(f"{len(busy)} rows say nothing: others took {min(busy):.0%} of a core and more meanwhile")


def write_json(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """The machine and all that is known about each row."""
    found = [{**asdict(row), "rate": row.rate, "met": row.met} for row in rows]
    path.write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")


def write_plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    """A bar for each fraction, with a tick where it should reach.

    Raises
    ------
    ImportError
        Without matplotlib.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row.unit.startswith("of ") and row.figure is not None][::-1]
    reached = [row.figure or 0.0 for row in shown]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.22 * len(shown)), layout="constrained")
    colours = ["tab:red" if row.met is False else "tab:blue" for row in shown]
    axes.barh(range(len(shown)), reached, color=colours)
    for place, row in enumerate(shown):
        if row.bar is not None:
            axes.plot([row.bar] * 2, [place - 0.4, place + 0.4], color="black")
    axes.set_yticks(range(len(shown)), [f"{row.case}, {row.dtype}" for row in shown], fontsize=7)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlabel("fraction of the fastest pass over the same bytes; the tick is the bar")
    axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
