"""The tables and charts of docs/performance.md, from the committed results (`committed`).

Each block of the page is a function of the results that returns its lines: a table, and a sentence that names the
machine and the commits. `performance_page.py` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from upsweep_bench import charts
from upsweep_bench.charts import Bar, Panel
from upsweep_bench.committed import Measurement, Results

__all__ = [
    "COUNTS", "CPU", "CPU_PEERS", "GPU", "LAYOUTS", "LINE", "MACHINES", "SCANS", "SHORT", "Source", "blocks",
    "fraction", "measured_at", "page_charts", "ratio", "table_lines", "time_text",
]  # fmt: skip

CPU, GPU = "epyc-zen3-2core", "h200"  # folders of the results
MACHINES = {CPU: "2 cores of an AMD EPYC (Zen 3)", GPU: "NVIDIA H200"}
SHORT = {CPU: "2 cores, Zen 3", GPU: "H200"}
SCANS, COUNTS = "bench_cuda_scans.Fractions", "bench_cuda_counts.Fractions"
LAYOUTS, CPU_PEERS = "bench_scans.Layouts", "bench_peers.Peers.track_ratio_to_peer"
LINE = "one line"  # of `LAYOUTS`
_SHAPES = {LINE: "1 x 10,000,000", "4096 x 1024": "4,096 x 1,024", "(1024, 4096) axis 0": "1,024 x 4,096 axis 0",
           "(1,000,000, 32) axis 0": "1,000,000 x 32 axis 0", "(4096, 8192) axis 0": "4,096 x 8,192 axis 0",
           "(64, 1000, 100) axis 1": "64 x 1,000 x 100 axis 1"}  # fmt: skip
_OPERATIONS = ("discounted_cumsum", "linear_recurrence")
_GPU_SCAN_PEERS = ("fpscan", "accelerated-scan", "accelerated-scan Triton", "associative_scan",
                   "torch-discounted-cumsum", "torch.cumsum")  # fmt: skip

Case = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where a value is: a benchmark and one of its cases. `name` is the package of which it has the ratio."""

    benchmark: str
    case: Case = ()
    name: str = ""

    def get(self, results: Results, machine: str) -> Measurement | None:
        return results.get(machine, self.benchmark, *self.case)


# ---- text -------------------------------------------------------------------------------------------------------


def time_text(seconds: float) -> str:
    """A time with three digits, in microseconds or milliseconds, on one line."""
    number, unit = (seconds * 1e3, "ms") if seconds >= 1e-4 else (seconds * 1e6, "us")
    digits = f"{number:.0f}" if number >= 100 else f"{number:.3g}"
    return f"{digits}\N{NO-BREAK SPACE}{unit}"


def fraction(value: float) -> str:
    return f"{value:.2f}"


def ratio(value: float) -> str:
    return charts.number(value)


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def measured_at(values: Sequence[Measurement]) -> str:
    """The days of the commits that were measured, and the commits."""
    pairs = sorted({(value.day, value.commit) for value in values})
    days = groupby(pairs, key=lambda pair: pair[0])
    return ", ".join(f"{day} ({', '.join(f'`{commit}`' for _, commit in of_day)})" for day, of_day in days)


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, without columns that are empty."""
    shown = [k for k in range(len(head)) if any(row[k] for row in rows)]
    lines = ["|" + "|".join(f" {row[k]} " if row[k] else " " for k in shown) + "|" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(shown), *lines[1:]]


# ---- tables -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, how its values are written, and where that of a case is."""

    title: str
    text: Callable[[float], str]
    source: Callable[[Case], Source]


def _of(title: str, text: Callable[[float], str], benchmark: str) -> Column:
    return Column(title, text, lambda case: Source(benchmark, case))


def _peer(
    benchmark: str, peer: str, case_of: Callable[[Case], str] = lambda case: case[0], title: str = ""
) -> Column:
    """The ratio of a package in a benchmark whose cases are named after the package and the case."""
    return Column(title or peer, ratio, lambda case: Source(benchmark, (f"{peer}: {case_of(case)}",)))


def _as_it_is(case: Case) -> Sequence[str]:
    return case


def _case_and_dtype(case: Case) -> Sequence[str]:
    return case[0].rsplit(", ", 1)


def _table(
    results: Results,
    machine: str,
    titles: Sequence[str],
    cases: Sequence[Case],
    columns: Sequence[Column],
    words: Callable[[Case], Sequence[str]] = _as_it_is,
) -> list[str]:
    """A row for each case that has a value; then the machine and the commits of the columns."""
    of_columns: list[list[Measurement]] = [[] for _ in columns]
    rows = []
    for case in cases:
        values = [column.source(case).get(results, machine) for column in columns]
        if any(values):
            texts = ("" if value is None else column.text(value.value) for value, column in zip(values, columns))
            rows.append([*words(case), *texts])
        for measured, value in zip(of_columns, values):
            measured.extend([] if value is None else [value])
    if not rows:
        return ["There are no results yet."]
    by_commits: dict[str, list[str]] = {}
    for column, measured in zip(columns, of_columns):
        if measured:
            by_commits.setdefault(measured_at(measured), []).append(column.title)
    parts = [f"{', '.join(names)}: {commits}" for commits, names in by_commits.items()]
    sentence = next(iter(by_commits)) if len(by_commits) == 1 else "; ".join(parts)
    head = [*titles, *(column.title for column in columns)]
    return [*table_lines(head, rows), "", f"{MACHINES[machine]}; {sentence}."]


# ---- blocks of the page, GPU ------------------------------------------------------------------------------------


def _gpu_scans(results: Results, with_peers: bool) -> list[str]:
    """Those that are compared with other packages, or the others."""
    of_peers = [_peer("bench_cuda_scans.Peers.track_ratio_to_peer", peer) for peer in _GPU_SCAN_PEERS]
    times, fractions = f"{SCANS}.track_milliseconds", f"{SCANS}.track_fraction_of_copy"
    chosen = [
        case
        for case in results.cases(GPU, times, fractions)
        if with_peers == any(column.source(case).get(results, GPU) for column in of_peers)
    ]
    columns = [
        _of("time", time_text, times),
        _of("of a copy", fraction, fractions),
        *(of_peers if with_peers else ()),
    ]
    return _table(results, GPU, ("scan", "dtype"), chosen, columns, _case_and_dtype)


def _gpu_calls(results: Results) -> list[str]:
    name = "bench_cuda_scans.Calls.track_microseconds"
    columns = [_of("time", time_text, name)]
    return _table(results, GPU, ("call", "dtype"), results.cases(GPU, name), columns, _case_and_dtype)


def _gpu_lengths(results: Results) -> list[str]:
    name = "bench_cuda_scans.Lengths.track_power_of_two_over_odd"
    columns = [_of("time of an element at a power of two, over that at this length", fraction, name)]
    return _table(results, GPU, ("scan", "dtype"), results.cases(GPU, name), columns, _case_and_dtype)


def _gpu_counts(results: Results) -> list[str]:
    times, fractions = f"{COUNTS}.track_milliseconds", f"{COUNTS}.track_fraction_of_copy"
    peers = "bench_cuda_counts.Peers.track_ratio_to_peer"

    def equal_keys(case: Case) -> str:
        return case[0].replace("uniform", "all equal")

    columns = [
        _of("time", time_text, times),
        _of("of a copy", fraction, fractions),
        _peer(peers, "torch.bincount"),
        _peer(peers, "torch.bincount", equal_keys, "torch.bincount, equal keys"),
        _peer(peers, "torch.histc"),
        _peer(peers, "cupy"),
    ]
    return _table(results, GPU, ("keys", "dtype"), results.cases(GPU, times, fractions), columns, _case_and_dtype)


def _gpu_pairs(results: Results) -> list[str]:
    name = "bench_cuda_pairs.Reductions.track_milliseconds"
    columns = [_of("time", time_text, name), _peer("bench_cuda_pairs.Peers.track_ratio_to_peer", "KeOps")]
    return _table(results, GPU, ("reduction", "dtype"), results.cases(GPU, name), columns, _case_and_dtype)


def _gpu_updates(results: Results) -> list[str]:
    name = "bench_cuda_user_scans.Updates.track_ratio"
    columns = [_of("of a copy, or of the scan", fraction, name)]
    return _table(results, GPU, ("update", "dtype"), results.cases(GPU, name), columns, _case_and_dtype)


def _gpu_programs(results: Results) -> list[str]:
    name, peers = "bench_cuda_user_scans.Programs.track_figure", "bench_cuda_user_scans.Peers.track_ratio_to_peer"
    of_peers = [
        _peer(peers, peer, lambda case: f"{case[0]}, float32") for peer in ("a loop in torch", "torch.nn.LSTM")
    ]
    columns = [_of("of a copy; LSTM: us a step", _three_digits, name), *of_peers]
    return _table(results, GPU, ("program, float32",), results.cases(GPU, name), columns)


# ---- blocks of the page, CPU ------------------------------------------------------------------------------------


def _cpu_scans(results: Results) -> list[str]:
    """A row for each shape; a time and a fraction of a copy for each operation and dtype."""
    kinds = [(operation, dtype) for dtype in ("float32", "float64") for operation in _OPERATIONS]
    times, fractions = f"{LAYOUTS}.time_scan", f"{LAYOUTS}.track_fraction_of_copy"
    rows, used = [], []
    for shape in dict.fromkeys(case[-1] for case in results.cases(CPU, times, fractions)):
        row = [_SHAPES.get(shape, shape)]
        for kind in kinds:
            seconds, of_copy = (results.get(CPU, name, *kind, shape) for name in (times, fractions))
            used += [value for value in (seconds, of_copy) if value is not None]
            texts = (time_text(seconds.value) if seconds else "", fraction(of_copy.value) if of_copy else "")
            row.append(", ".join(filter(None, texts)))
        rows.append(row)
    head = ["shape", *(f"`{operation}` {dtype}" for operation, dtype in kinds)]
    return [*table_lines(head, rows), "", f"{MACHINES[CPU]}; {measured_at(used)}."]


def _cpu_variants(results: Results) -> list[str]:
    times, fractions = "bench_scans.Variants.time_scan", "bench_scans.Variants.track_fraction_of_copy"
    columns = [_of("time", time_text, times), _of("of a copy", fraction, fractions)]
    return _table(results, CPU, ("1 x 10,000,000, float32",), results.cases(CPU, times, fractions), columns)


def _cpu_counts(results: Results) -> list[str]:
    name = "bench_counts.Bincount"
    cases = results.cases(CPU, f"{name}.time_bincount", f"{name}.track_ratio_to_numpy")

    def of_run(case: Case) -> str:
        """The case of `run.py` for one of the benchmark, such as "int64, 256 bins, all equal"."""
        dtype, bins, *rest = case[0].split(", ")
        kind = f"{rest[0]} uniform" if rest and "weights" in rest[0] else rest[0] if rest else "uniform"
        return f"bincount 20,000,000 in {bins} {kind}, {dtype}"

    columns = [
        _of("time of 10,000,000 keys", time_text, f"{name}.time_bincount"),
        _of("np.bincount", ratio, f"{name}.track_ratio_to_numpy"),
        _peer(CPU_PEERS, "torch.bincount", of_run),
    ]
    return _table(results, CPU, ("keys",), cases, columns)


def _cpu_histograms(results: Results) -> list[str]:
    name = "bench_histograms.Histogram"
    cases = results.cases(CPU, f"{name}.time_histogram", f"{name}.track_ratio_to_numpy")

    def of_run(case: Case) -> str:
        dtype, _, bins = case[0].partition(", ")
        return f"histogram 20,000,000 in {bins} uniform, {dtype}"

    columns = [
        _of("time of 10,000,000 numbers", time_text, f"{name}.time_histogram"),
        _of("of a copy, known range", fraction, f"{name}.track_of_copy"),
        _of("np.histogram", ratio, f"{name}.track_ratio_to_numpy"),
        *(_peer(CPU_PEERS, peer, of_run) for peer in ("torch.histc", "boost-histogram", "fast-histogram")),
    ]
    return _table(results, CPU, ("numbers",), cases, columns)


def _cpu_updates(results: Results) -> list[str]:
    name = "bench_user_scans.Updates"
    columns = [
        _of("time", time_text, f"{name}.time_scan"),
        _of("of a copy", fraction, f"{name}.track_of_copy"),
        _of("a numba loop", ratio, f"{name}.track_ratio_to_numba"),
    ]
    return _table(results, CPU, ("update",), results.cases(CPU, f"{name}.time_scan"), columns)


def _cpu_programs(results: Results) -> list[str]:
    columns = [
        _of("time", time_text, "bench_te.Programs.time_call"),
        _of("of a copy", fraction, "bench_te.Columns.track_of_copy"),
        _of("numpy", ratio, "bench_te.Programs.track_ratio_to_numpy"),
        _of("a numba loop", ratio, "bench_te.Columns.track_ratio_to_numba"),
    ]
    return _table(results, CPU, ("program, float32",), results.cases(CPU, "bench_te.Programs.time_call"), columns)


def _cpu_pairs(results: Results) -> list[str]:
    rates, shares = "bench_pairs.Dense.track_rate", "bench_pairs.Sparse.track_share_of_dense"
    columns = [
        _of("10^9 pairs a second and core", _three_digits, rates),
        _of("of the dense rate", fraction, shares),
        _peer(CPU_PEERS, "numpy, a tenth of the rows", title="numpy"),
        _peer(CPU_PEERS, "KeOps"),
        _peer(CPU_PEERS, "scikit-learn"),
    ]
    return _table(
        results, CPU, ("reduction", "dtype"), results.cases(CPU, rates, shares), columns, _case_and_dtype
    )


def blocks(results: Results) -> dict[str, list[str]]:
    """The lines of each block of the page."""
    return {
        "gpu-scans-peers": _gpu_scans(results, with_peers=True),
        "gpu-scans": _gpu_scans(results, with_peers=False),
        "gpu-calls": _gpu_calls(results),
        "gpu-lengths": _gpu_lengths(results),
        "gpu-counts": _gpu_counts(results),
        "gpu-pairs": _gpu_pairs(results),
        "gpu-updates": _gpu_updates(results),
        "gpu-programs": _gpu_programs(results),
        "cpu-scans": _cpu_scans(results),
        "cpu-variants": _cpu_variants(results),
        "cpu-counts": _cpu_counts(results),
        "cpu-histograms": _cpu_histograms(results),
        "cpu-updates": _cpu_updates(results),
        "cpu-programs": _cpu_programs(results),
        "cpu-pairs": _cpu_pairs(results),
    }


# ---- charts -----------------------------------------------------------------------------------------------------

Name = Callable[[Case], tuple[str, str]]
"""The label of a case in a chart, and what is measured of it: a dtype or another package."""
Panels = dict[str, tuple[tuple[str, str, Name], ...]]
"""For each machine the titles, the benchmarks and the labels of panels."""


def _bars(results: Results, machine: str, benchmark: str, name: Name) -> list[Bar]:
    """The values of a benchmark; those of the same label next to each other."""
    groups: dict[str, list[Bar]] = {}
    for case in results.cases(machine, benchmark):
        label, series = name(case)
        measured = results.get(machine, benchmark, *case)
        groups.setdefault(label, []).extend([] if measured is None else [Bar(label, series, measured.value)])
    return [bar for bars in groups.values() for bar in bars]


def _short(label: str) -> str:
    """Powers of two as such, and no number of keys that is that of all bars."""
    for words, shorter in (
        (" 134,217,728 in", " in"), (" 20,000,000 in", " in"), ("268,435,456", "2^28"), ("1,048,576", "2^20"),
        ("1,000,000 x 1,000,000", "10^6 x 10^6"), ("100,000 x 100,000", "10^5 x 10^5"), (" uniform", ""),
        ("forward and backward", "and gradients"), ("linear_recurrence_carry", "recurrence_carry"),
    ):  # fmt: skip
        label = label.replace(words, shorter)
    return label


def _label_and_dtype(case: Case) -> tuple[str, str]:
    label, dtype = _case_and_dtype(case)
    return _short(label), dtype


def _label_and_peer(case: Case) -> tuple[str, str]:
    peer, _, label = case[0].partition(": ")
    return _short(label.removesuffix(", float32")), peer.removesuffix(", a tenth of the rows")


def _shape_and_dtype(case: Case) -> tuple[str, str]:
    return f"{case[0]} {_SHAPES.get(case[2], case[2])}", case[1]


def _compared_with(peer: str) -> Name:
    return lambda case: (case[0], peer)


_OF_COPY = "speed as a fraction of a copy's"
_OF_PEERS = "times as fast as the other package"
_PEER_PANELS: Panels = {
    GPU: (
        ("scans", "bench_cuda_scans.Peers.track_ratio_to_peer", _label_and_peer),
        ("counts of 2^27 keys", "bench_cuda_counts.Peers.track_ratio_to_peer", _label_and_peer),
        ("pairs", "bench_cuda_pairs.Peers.track_ratio_to_peer", _label_and_peer),
        ("programs of te", "bench_cuda_user_scans.Peers.track_ratio_to_peer", _label_and_peer),
    ),
    CPU: (
        ("counts of 10,000,000 keys", "bench_counts.Bincount.track_ratio_to_numpy", _compared_with("np.bincount")),
        (
            "histograms of 10,000,000",
            "bench_histograms.Histogram.track_ratio_to_numpy",
            _compared_with("np.histogram"),
        ),
        ("user-defined scans", "bench_user_scans.Updates.track_ratio_to_numba", _compared_with("a numba loop")),
        ("20,000,000 keys or points", CPU_PEERS, _label_and_peer),
    ),
}
_COPY_PANELS: Panels = {
    GPU: (
        ("scans", f"{SCANS}.track_fraction_of_copy", _label_and_dtype),
        ("counts of 2^27 keys", f"{COUNTS}.track_fraction_of_copy", _label_and_dtype),
    ),
    CPU: (("scans", f"{LAYOUTS}.track_fraction_of_copy", _shape_and_dtype),),
}


def page_charts(results: Results) -> dict[str, tuple[str, list[Panel]]]:
    """The title and the panels of the page's charts, by their files."""
    files: dict[str, tuple[str, list[Panel]]] = {}
    every: tuple[tuple[Literal["ratio", "fraction"], str, str, Panels], ...] = (
        ("fraction", _OF_COPY, "copy", _COPY_PANELS),
        ("ratio", _OF_PEERS, "peers", _PEER_PANELS),
    )
    for device, machine in (("gpu", GPU), ("cpu", CPU)):
        for kind, axis, title, panels in every:
            drawn = [
                Panel(f"{SHORT[machine]}: {name}", axis, kind, _bars(results, machine, benchmark, label))
                for name, benchmark, label in panels[machine]
            ]
            files[f"{title}-{device}.svg"] = (f"upsweep on {MACHINES[machine]}: {axis}", drawn)
    return files
