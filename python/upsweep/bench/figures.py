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
    handles, labels = grid[0][0].get_legend_handles_labels()  # all axes have the same lines
    if labels:
        figure.legend(handles, labels, fontsize=8, ncols=3, loc="outside lower center")
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


def _milliseconds(row: Row) -> float | None:
    return None if row.seconds is None else row.seconds * 1e3


def _figure(row: Row) -> float | None:
    return row.figure


def write_against_length(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Time, and the fraction of a copy, against length, of the rows that have both: a line for each family.

    Raises
    ------
    ImportError
        Without matplotlib.
    """
    shown = [row for row in rows if row.unit == "of copy" and row.seconds is not None]
    at: dict[str, set[int | None]] = {}
    for row in shown:
        at.setdefault(row.family, set()).add(row.length)
    joined = [row for row in shown if len(at[row.family]) > 1]
    alone = [row for row in shown if len(at[row.family]) == 1]
    with axes(path, title, n=2) as (times, fractions):
        for axis, value in ((times, _milliseconds), (fractions, _figure)):
            lines(axis, joined, lambda row: row.family, value)
            if alone:
                heights = [value(row) for row in alone]
                axis.scatter(
                    [row.length for row in alone], heights, color="silver", label="others, one length each"
                )
        times.set_yscale("log")
        times.set_ylabel("median time, ms")
        for row in (row for row in shown if row.bar is not None):
            fractions.plot(row.length, row.bar, marker="_", markersize=12, color="black")
        fractions.set_ylim(bottom=0)
        fractions.set_ylabel("fraction of the speed of a copy (the dash: its bar)")
