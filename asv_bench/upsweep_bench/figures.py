"""Figures of benchmark rows, drawn by matplotlib, which is imported only when a figure is written."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from upsweep.bench.report import Row

__all__ = ["axes", "can_draw", "lines", "write_against_length", "write_fractions"]


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def _figure(path: Path, title: str, size: tuple[float, float], n: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """A figure and its `n` axes, which is written to `path` in the end. ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, n, figsize=size, layout="constrained", squeeze=False)
    yield figure, list(grid[0])
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


@contextmanager
def axes(path: Path, title: str, n: int = 1) -> Iterator[list[Any]]:
    """`n` axes over length in one row. ImportError without matplotlib."""
    with _figure(path, title, (7.5 * n, 5.5), n) as (figure, all_axes):
        yield all_axes
        for each in all_axes:
            each.set_xscale("log", base=2)
            each.set_xlabel("length")
            each.grid(alpha=0.3)
        handles, labels = all_axes[0].get_legend_handles_labels()  # all axes have the same lines
        if labels:
            figure.legend(handles, labels, fontsize=8, ncols=3, loc="outside lower center")


def lines(
    axes: Any, rows: Sequence[Row], label: Callable[[Row], str], value: Callable[[Row], float | None]
) -> None:
    """One line for each label, through the rows that have a value, in the order of their lengths."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        height = value(row)
        if height is not None and row.length is not None:
            points.setdefault(label(row), []).append((row.length, height))
    for name, line in points.items():
        axes.plot(*zip(*sorted(line)), marker="o", label=name)


def milliseconds(row: Row) -> float | None:
    return None if row.seconds is None else row.seconds * 1e3


def write_against_length(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Time, and the fraction of a copy, against length, of the rows that have both: a line for each family."""
    shown = [row for row in rows if row.unit == "of copy" and row.seconds is not None]
    lengths: dict[str, set[int | None]] = {}
    for row in shown:
        lengths.setdefault(row.family, set()).add(row.length)
    joined = [row for row in shown if len(lengths[row.family]) > 1]
    single = [row for row in shown if len(lengths[row.family]) == 1]
    with axes(path, title, n=2) as (times, fractions):
        for axis, value in ((times, milliseconds), (fractions, lambda row: row.value)):
            lines(axis, joined, lambda row: row.family, value)
            if single:
                heights = [value(row) for row in single]
                axis.scatter(
                    [row.length for row in single], heights, color="silver", label="others, one length each"
                )
        times.set_yscale("log")
        times.set_ylabel("median time, ms")
        for row in (row for row in shown if row.threshold is not None):
            fractions.plot(row.length, row.threshold, marker="_", markersize=12, color="black")
        fractions.set_ylim(bottom=0)
        fractions.set_ylabel("fraction of the speed of a copy (dash: threshold)")


def write_fractions(path: Path, title: str, rows: Sequence[Row]) -> None:
    """A bar for each fraction of a pass over memory, with a tick at its threshold."""
    shown = [row for row in rows if row.unit.startswith("of ") and row.value is not None][::-1]
    with _figure(path, title, (9, 1.2 + 0.22 * len(shown))) as (_, (axis,)):
        colours = ["tab:red" if row.met is False else "tab:blue" for row in shown]
        axis.barh(range(len(shown)), [row.value or 0.0 for row in shown], color=colours)
        for position, row in enumerate(shown):
            if row.threshold is not None:
                axis.plot([row.threshold] * 2, [position - 0.4, position + 0.4], color="black")
        axis.set_yticks(range(len(shown)), [f"{row.case}, {row.dtype}" for row in shown], fontsize=7)
        axis.set_ylim(-0.6, len(shown) - 0.4)
        axis.set_xlabel("fraction of the fastest pass over as many bytes; the tick is the threshold")
