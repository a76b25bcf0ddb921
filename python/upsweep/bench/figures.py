"""Lines against length, drawn by matplotlib, which is imported here only and when a figure is wanted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from upsweep.bench.report import Row

__all__ = ["axes", "can_draw", "lines", "write_against_length"]


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def axes(path: Path, title: str, n: int = 1) -> Iterator[list[Any]]:
    """`n` axes beside each other, whose picture is written to `path` in the end.

    Raises
    ------
    ImportError
        Without matplotlib.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, n, figsize=(7.5 * n, 5.5), layout="constrained", squeeze=False)
    yield list(grid[0])
    for each in grid[0]:
        each.set_xscale("log", base=2)
        each.set_xlabel("length")
        each.grid(alpha=0.3)
        if each.get_legend_handles_labels()[0]:
            each.legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def lines(
    axes: Any, rows: Sequence[Row], label: Callable[[Row], str], value: Callable[[Row], float | None]
) -> None:
    """One line for each label, through the rows that have a value, in the order of their lengths."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        height = value(row)
        if height is not None and row.length is not None:
            points.setdefault(label(row), []).append((row.length, height))
    for name, found in points.items():
        axes.plot(*zip(*sorted(found)), marker="o", label=name)


def write_against_length(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Time, and the fraction of a copy, against length: a line for each family of rows that has both.

    Raises
    ------
    ImportError
        Without matplotlib.
    """
    shown = [row for row in rows if row.unit == "of copy"]
    with axes(path, title, n=2) as (times, fractions):
        lines(times, shown, lambda row: row.family, lambda row: row.seconds and row.seconds * 1e3)
        times.set_yscale("log")
        times.set_ylabel("median time, ms")
        lines(fractions, shown, lambda row: row.family, lambda row: row.figure)
        for row in (row for row in shown if row.bar is not None):
            fractions.plot(row.length, row.bar, marker="_", markersize=12, color="black")
        fractions.set_ylim(bottom=0)
        fractions.set_ylabel("fraction of a copy of the same minimal bytes; the dash is the bar")
