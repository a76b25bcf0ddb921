"""``python -m upsweep demo``: scans, counts, reductions over pairs and recurrences of Python's own sources.

Each row compares upsweep's time with that of the usual way in numpy, scipy or Python, and checks the result: a
prefix against ``upsweep.reference``, all of it in vectorised numpy. A new row is a new entry in `_rows`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sysconfig
import time
from collections.abc import Callable
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


@dataclass(frozen=True)
class Row:
    """One line of the table. `check` raises AssertionError when upsweep's result is wrong."""

    title: str
    n: int
    call: Callable[[], Array]
    check: Callable[[Array], None]
    peer_name: str
    peer: Callable[[], object] | None  # None: not installed
    share: float = 1.0  # the part of the n elements that the peer processes; its time is scaled up


def _source_bytes() -> Array:
    """The bytes of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    source = bytearray()
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "dist-packages"}.intersection(path.parts) and len(source) < _MOST_BYTES:
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


def _measure(row: Row) -> tuple[tuple[str, ...], Array]:
    """The cells of the row, of which the last is "ok" where the result is right; and the result."""
    seconds, result = _timed(row.call, 3)
    try:
        row.check(result)
        status = "ok"
    except AssertionError as error:
        status = "WRONG: " + " ".join(str(error).split())
    peer_time, ratio = "not installed", ""
    if row.peer is not None:
        peer_seconds = _timed(row.peer, 1)[0] / row.share
        peer_time, ratio = f"{peer_seconds * 1e3:.1f} ms", f"{peer_seconds / seconds:.1f}"
    return (row.title, f"{row.n:,}", f"{seconds * 1e3:.1f} ms", row.peer_name, peer_time, ratio, status), result


def _draw(path: Path, discounted: Array, brackets: Array, pairs: Array) -> None:
    """Draw the counts of byte pairs and a section of the two signals."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("agg")  # writes files without a display
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplot_mosaic(
        [["pairs", "sum"], ["pairs", "gated"]], figsize=(12, 5.5), width_ratios=(1, 1.2), layout="constrained"
    )
    counts = np.zeros(1 << 16)
    counts[: pairs.size] = pairs
    # Bytes of 128 and above are rare in sources, so only ASCII is shown.
    shown = np.log10(1 + counts.reshape(256, 256)[:128, :128])
    image = axes["pairs"].imshow(shown, origin="lower", cmap="magma")
    figure.colorbar(image, ax=axes["pairs"], label="log10(1 + count)", shrink=0.8)
    axes["pairs"].set(title="bincount of byte pairs", xlabel="second byte", ylabel="first byte")
    section = slice(discounted.size // 2, discounted.size // 2 + 4000)
    positions = np.arange(section.start, section.stop)
    axes["sum"].plot(positions, discounted[section], linewidth=0.8)
    axes["sum"].set_title(f"discounted sum of the bytes, gamma = {_GAMMA}")
    axes["gated"].plot(positions, brackets[section], linewidth=0.8, color="tab:orange")
    axes["gated"].set(title="gated recurrence: opening brackets, fading", xlabel="byte")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run(output: Path) -> int:
    """Run the rows, print the table and draw the picture; returns the exit code."""
    with Progress("demo") as progress:
        rows = _rows(_source_bytes())
        measured = []
        for done, row in enumerate(rows):
            progress.update(done, len(rows))
            measured.append(_measure(row))
    cells, results = zip(*measured)
    config = upsweep.show_config()
    print(f"The sources of Python's standard library, {rows[0].n:,} bytes; upsweep {config['version']}")
    print(f"on {config['threads']} threads, {config['isa']}\n")
    head = ("operation", "n", "upsweep", "compared with", "its time", "ratio", "check")
    print(format_table([head, *cells], "<>><>><"))
    try:
        _draw(output, results[0], results[1], results[4])
    except ImportError:
        print("\nno picture: matplotlib is not installed")
    else:
        print(f"\npicture: {output}")
    return 0 if all(row[-1] == "ok" for row in cells) else 1
