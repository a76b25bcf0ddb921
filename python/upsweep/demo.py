"""``python -m upsweep demo``: scans, counts, reductions over pairs and recurrences of Python's own sources.

Each row compares upsweep's time with that of the usual way in numpy, scipy or Python, and checks the result: a
prefix against ``upsweep.reference``, all of it in vectorised numpy. A new row is a new entry in `_rows`.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import upsweep
from upsweep import cluster, reference
from upsweep._utils.progress import Progress, format_table
from upsweep.selftest import assert_recurrence
from upsweep.testing import assert_scan_close

__all__ = ["Row", "run"]

Array = NDArray[Any]

_MOST_BYTES = 24_000_000
_PREFIX = 100_000  # elements that the reference, a Python loop, computes
_GAMMA = 0.999
_NEWLINE = 10
# Passages of _PASSAGE bytes are points; a Gaussian of width _WIDTH is cut off at _REACH widths.
_POINTS, _PASSAGE, _WIDTH, _REACH, _CELL, _ROWS = 40_000, 256, 0.2, 6.0, 2.0, 200
_COLUMNS = 1024  # of bytes, for the recurrence of rows
_FADING, _SECTION = 1, 600  # the row whose result is drawn, and the number of its steps


@dataclass(frozen=True)
class Row:
    """One line of the table. `check` raises AssertionError when upsweep's result is wrong."""

    title: str
    n: int
    call: Callable[[], Array]
    check: Callable[[Array], None]
    peer_name: str  # today's way
    peer: Callable[[], object] | None  # None: not installed
    share: float = 1.0  # the part of the n elements that the peer processes; its time is scaled up


def _source_bytes() -> Array:
    """The bytes of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    source = bytearray()
    for path in sorted(folder.rglob("*.py")):
        # A link may lead nowhere.
        is_own = not {"site-packages", "dist-packages"}.intersection(path.parts) and path.is_file()
        if is_own and len(source) < _MOST_BYTES:
            source += path.read_bytes()
    if len(source) < 2 * _PREFIX:
        raise FileNotFoundError(f"no sources of the standard library under {folder.name}")
    return np.frombuffer(source, np.uint8)[:_MOST_BYTES]


def _lfilter(x: Array, gamma: float) -> Callable[[], object] | None:
    try:
        signal = importlib.import_module("scipy.signal")
    except ImportError:
        return None
    return partial(signal.lfilter, np.ones(1, x.dtype), np.array([1, -gamma], x.dtype), x)


def _loop(gates: Array, tokens: Array) -> list[float]:
    """A gated recurrence as a Python loop."""
    state, states = 0.0, []
    for gate, token in zip(gates.tolist(), tokens.tolist()):
        state = gate * state + token
        states.append(state)
    return states


def _line_positions(starts: Array) -> Array:
    """The position in its line of each byte, from 1, in numpy."""
    positions = np.arange(starts.size)
    return positions - np.maximum.accumulate(np.where(starts, positions, 0)) + 1


def _check_recurrence(gates: Array | float, tokens: Array, y: Array) -> None:
    first = gates if isinstance(gates, float) else gates[:_PREFIX]
    # All terms are positive, so the result itself is the scale of its error.
    expected = reference.linear_recurrence(first, tokens[:_PREFIX], precision="extended")
    assert_scan_close(y[:_PREFIX], expected, expected)
    assert_recurrence(y, gates, tokens)


def _check_positions(starts: Array, y: Array) -> None:
    ones = np.ones(_PREFIX, np.int64)
    np.testing.assert_array_equal(y[:_PREFIX], reference.cumulative_sum(ones, reset=starts[:_PREFIX]))
    np.testing.assert_array_equal(y, _line_positions(starts))


def _check_counts(keys: Array, y: Array) -> None:
    prefix = keys[: _PREFIX // 4]
    np.testing.assert_array_equal(upsweep.bincount(prefix), reference.bincount(prefix))
    np.testing.assert_array_equal(y, np.bincount(keys))


def _passages(data: Array) -> Array:
    """The mean and the spread of the bytes of each of many passages: points of the plane, sorted by cell."""
    n = min(_POINTS, data.size // _PASSAGE)
    passages = data[: n * _PASSAGE].reshape(n, _PASSAGE).astype(np.float32)
    points = np.stack([passages.mean(axis=1), passages.std(axis=1)], axis=1)
    return cluster.sort_clusters(points, cluster.grid_cluster(points, _CELL))[0]


def _dense_density(points: Array, n_rows: int) -> Array:
    """The density of points around each of the first ones, in numpy."""
    x = points.astype(np.float64)
    squares = ((x[:n_rows, None] - x) ** 2).sum(axis=2)
    density: Array = np.exp(-0.5 / _WIDTH**2 * squares).sum(axis=1)
    return density


def _check_density(points: Array, y: Array) -> None:
    expected = _dense_density(points, _ROWS)
    # Each point out of reach adds exp(-reach**2 / 2) at most.
    left_out = len(points) * np.exp(-0.5 * _REACH**2)
    np.testing.assert_allclose(y[:_ROWS, 0], expected, rtol=1e-5, atol=left_out)
    assert y.shape == (len(points), 1) and (y > 0.99).all()


def _density_row(data: Array) -> Row:
    points = _passages(data)
    # The pairs of cells within reach of the kernel.
    cells = cluster.cluster_ranges(cluster.grid_cluster(points, _CELL))
    ranges = upsweep.BlockRanges.from_radius(points, points, _REACH * _WIDTH, cells)
    i, j = upsweep.Vi(points), upsweep.Vj(points)
    kernel = (i.sqdist(j) * (-0.5 / _WIDTH**2)).exp()
    return Row(
        "density of passages, near pairs", len(points), partial(kernel.sum, axis=1, ranges=ranges),
        partial(_check_density, points), "numpy, scaled", partial(_dense_density, points, _ROWS),
        _ROWS / len(points),
    )  # fmt: skip


def _deeper(depth: Any, step: Any) -> Any:
    """The depth in brackets, at least 0."""
    return np.maximum(depth + step, 0.0)


def _depths(steps: Array) -> list[float]:
    """The depths as a Python loop."""
    depth, depths = 0.0, []
    for step in steps.tolist():
        depth = max(depth + step, 0.0)
        depths.append(depth)
    return depths


def _check_depths(steps: Array, y: Array) -> None:
    np.testing.assert_array_equal(y[:_PREFIX], reference.scan(_deeper, 0.0, steps[:_PREFIX]))
    sums = np.cumsum(steps)
    np.testing.assert_array_equal(y, sums - np.minimum.accumulate(np.minimum(sums, 0)))


def _falling_peaks(rows: Array) -> Array:
    """Maxima of each column that decrease by one a row, step by step in numpy."""
    peaks = np.empty_like(rows)
    peaks[0] = rows[0]
    for t in range(1, len(rows)):
        np.maximum(peaks[t - 1] - 1, rows[t], out=peaks[t])
    return peaks


def _build_peaks() -> Callable[[Array], Array]:
    """The same as a program of `te`."""
    from upsweep import te

    m, n = te.var("m"), te.var("n")
    X, state = te.placeholder((m, n), name="X"), te.placeholder((m, n))
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: te.max(state[t - 1, i] - 1, X[t, i]))
    peaks = te.scan(init, update, state, name="peaks")
    return te.build(te.create_schedule(peaks.op), [X, peaks])


def _recurrence_rows(data: Array, opens: Array) -> list[Row]:
    steps = opens - np.isin(data, np.frombuffer(b")]}", np.uint8))
    rows = data[: data.size // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS).astype(np.float32)
    return [
        Row(
            "scan by an update: depth of brackets", data.size, partial(upsweep.scan, _deeper, 0.0, steps),
            partial(_check_depths, steps), "Python loop, scaled", partial(_depths, steps[:_PREFIX]),
            _PREFIX / data.size,
        ),
        Row(
            f"te.scan: falling peaks, {_COLUMNS} columns", rows.size, partial(_build_peaks(), rows),
            lambda y: np.testing.assert_array_equal(y, _falling_peaks(rows)), "numpy, step by step",
            partial(_falling_peaks, rows),
        ),
    ]  # fmt: skip


def _rows(data: Array) -> list[Row]:
    n = data.size
    x = data.astype(np.float32)
    # A decaying count of opening brackets: slowly within a line, by half at its end.
    brackets = np.isin(data, np.frombuffer(b"([{", np.uint8)).astype(np.float32)
    gates = np.where(data == _NEWLINE, np.float32(0.5), np.float32(0.98))
    starts = np.concatenate([[True], data[:-1] == _NEWLINE])
    ones = np.broadcast_to(np.int64(1), n)
    pairs = data[:-1].astype(np.uint16) << 8 | data[1:]
    # Formulas are compiled by llvmlite, which is optional.
    compiled: list[Row] = []
    if importlib.util.find_spec("llvmlite"):
        compiled = [_density_row(data), *_recurrence_rows(data, brackets)]
    return [
        Row(
            "discounted sum of the bytes, float32", n, partial(upsweep.discounted_cumsum, x, _GAMMA),
            partial(_check_recurrence, _GAMMA, x), "scipy.signal.lfilter", _lfilter(x, _GAMMA),
        ),
        Row(
            "gated recurrence, brackets in a line", n, partial(upsweep.linear_recurrence, gates, brackets),
            partial(_check_recurrence, gates, brackets), "Python loop, scaled",
            partial(_loop, gates[:_PREFIX], brackets[:_PREFIX]), _PREFIX / n,
        ),
        Row(
            "position in the line, sum with resets", n, partial(upsweep.cumulative_sum, ones, reset=starts),
            partial(_check_positions, starts), "np.maximum.accumulate", partial(_line_positions, starts),
        ),
        *(
            Row(f"bincount of {what}", keys.size, partial(upsweep.bincount, keys), partial(_check_counts, keys),
                "np.bincount", partial(np.bincount, keys))
            for what, keys in (("the bytes", data), ("byte pairs", pairs))
        ),
        *compiled,
    ]  # fmt: skip


def _timed(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The seconds of the fastest call, and the result of the last."""
    best, result = float("inf"), None
    for _ in range(repeats):
        result = None  # frees the memory for the next call
        begin = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - begin)
    return best, result


@dataclass(frozen=True)
class Measured:
    """A row with its times in seconds; `error` says what is wrong with the result, if anything."""

    row: Row
    seconds: float
    peer_seconds: float | None
    error: str | None

    @property
    def ratio(self) -> float | None:
        """How many times faster upsweep is; None without the other package."""
        return None if self.peer_seconds is None else self.peer_seconds / self.seconds

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        row, status = self.row, "right" if self.error is None else f"WRONG: {self.error}"
        peer_time = "not installed" if self.peer_seconds is None else _time(self.peer_seconds)
        ratio = "" if self.ratio is None else f"{self.ratio:.1f}"
        return row.title, f"{row.n:,}", _time(self.seconds), row.peer_name, peer_time, ratio, status


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _measure(row: Row) -> Measured:
    seconds, result = _timed(row.call, 3)
    error = None
    try:
        row.check(result)
    except AssertionError as failure:
        error = " ".join(str(failure).split())
    peer_seconds = None if row.peer is None else _timed(row.peer, 1)[0] / row.share
    return Measured(row, seconds, peer_seconds, error)


def _summary(measured: Sequence[Measured]) -> str:
    n_wrong = sum(each.error is not None for each in measured)
    if n_wrong:
        return f"{n_wrong} of {len(measured)} results {'is' if n_wrong == 1 else 'are'} WRONG"
    ratios = [each.ratio for each in measured if each.ratio is not None]
    return (
        f"all {len(measured)} results are right; upsweep is {min(ratios):.1f} to {max(ratios):.0f} times faster "
        f"than today's way, {statistics.median(ratios):.0f} times in the median"
    )


def _draw(path: Path, measured: Sequence[Measured], fading: Array) -> None:
    """Draw the ratios of the table as bars, and some steps of the gated recurrence as an example of a scan."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("agg")  # writes files without a display
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, (bars, example) = pyplot.subplots(1, 2, figsize=(13, 4.5), width_ratios=(1.5, 1), layout="constrained")
    compared = [each for each in measured if each.ratio is not None]
    names = [f"{each.row.title}\nagainst {each.row.peer_name.removesuffix(', scaled')}" for each in compared]
    ratios = [each.ratio or 1.0 for each in compared]
    drawn = bars.barh(names, [ratio - 1 for ratio in ratios], left=1)
    bars.bar_label(drawn, [f"{ratio:.1f}" for ratio in ratios], padding=3)
    bars.invert_yaxis()
    bars.set(xscale="log", xlim=(min(1.0, *ratios), 3 * max(ratios)), title="times faster than today's way")
    bars.xaxis.set_major_formatter("{x:g}")
    example.plot(fading)
    example.set(
        title="a gated recurrence: opening brackets,\nwhich fade along a line and by half at its end",
        xlabel="byte of the section", ylabel="brackets",
    )  # fmt: skip
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _reason_not_to_draw(output: Path) -> str | None:
    if importlib.util.find_spec("matplotlib") is None:
        return "needs matplotlib: pip install matplotlib"
    return None if output.absolute().parent.is_dir() else f"there is no folder {output.parent}"


def run(output: Path | None = None) -> int:
    """Run the rows and print the table, with `output` draw it to this file; returns the exit code."""
    reason = None if output is None else _reason_not_to_draw(output)
    if reason is not None:
        print(f"--output: {reason}", file=sys.stderr)
        return 2
    with Progress("demo") as progress:
        rows = _rows(_source_bytes())
        measured = []
        for done, row in enumerate(rows):
            progress.update(done, len(rows))
            measured.append(_measure(row))
    config = upsweep.show_config()
    threads = f"{config['threads']} thread{'s' if config['threads'] > 1 else ''}"
    print(f"The sources of Python's standard library, {rows[0].n:,} bytes.")
    print(f"upsweep {config['version']} on {threads}, instruction set {config['isa']}.\n")
    head = ("operation", "n", "upsweep", "today's way", "time of today's way", "times faster", "result")
    print(format_table([head, *(each.cells() for each in measured)], "<>><>><"))
    print("\nscaled: measured on a part of the data, and multiplied")
    if importlib.util.find_spec("llvmlite") is None:
        print('not run: formulas and updates, which need llvmlite: pip install "upsweep[expr]"')
    print(_summary(measured))
    if output is None:
        print("python -m upsweep demo --output demo.png draws the table")
    else:
        middle = rows[_FADING].n // 2
        _draw(output, measured, rows[_FADING].call()[middle : middle + _SECTION])
        print(f"picture: {output}")
    return 0 if all(each.error is None for each in measured) else 1
