"""The README's table of headline figures and its picture, from the committed results.

A row is a plain description of where its values are. `performance_page.py` writes both.
"""

from __future__ import annotations

from dataclasses import dataclass

from upsweep_bench import page_tables
from upsweep_bench.charts import Bar, Panel
from upsweep_bench.committed import Measurement, Results
from upsweep_bench.page_tables import COUNTS, CPU, CPU_PEERS, GPU, LAYOUTS, LINE, MACHINES, SCANS, SHORT, Source

__all__ = ["HEADLINES", "Headline", "panels", "table"]


@dataclass(frozen=True)
class Headline:
    """A row of the table, and its bars. Of the packages the first is the one that is used most."""

    operation: str
    machine: str
    time: Source | None = None
    copy: Source | None = None
    peers: tuple[Source, ...] = ()

    def measured_peers(self, results: Results) -> list[tuple[str, Measurement]]:
        """The packages of which there is a ratio."""
        values = ((source.name, source.get(results, self.machine)) for source in self.peers)
        return [(name, value) for name, value in values if value is not None]


def _gpu(operation: str, family: str, label: str, *peers: str) -> Headline:
    """A row with a time and a fraction of a copy on a GPU."""
    name = {SCANS: "bench_cuda_scans.Peers", COUNTS: "bench_cuda_counts.Peers"}[family]
    compared = tuple(Source(f"{name}.track_ratio_to_peer", (f"{peer}: {label}",), peer) for peer in peers)
    time, copy = (
        Source(f"{family}.{value}", (label,)) for value in ("track_milliseconds", "track_fraction_of_copy")
    )
    return Headline(operation, GPU, time, copy, compared)


def _line(operation: str, *peers: Source) -> Headline:
    """A row of a line of 10,000,000 on a CPU."""
    case = (operation, "float32", LINE)
    time, copy = (Source(f"{LAYOUTS}.{value}", case) for value in ("time_scan", "track_fraction_of_copy"))
    return Headline(f"`{operation}`, 10,000,000 float32", CPU, time, copy, peers)


_MODEL = "linear_recurrence 8 x 1,536 x 8,192"
_POINTS = "Gaussian sum, D=3, 100,000 x 100,000, float32"
_LSTM = "te LSTM (1,000, 64, 128), float32"
_GARCH = ("GARCH (1000, 10,000)",)
HEADLINES = (
    _gpu("`linear_recurrence`, 8 x 1,536 x 8,192 float32", SCANS, f"{_MODEL}, float32",
         "fpscan", "accelerated-scan Triton", "associative_scan"),
    _gpu("`linear_recurrence`, the same, forward and backward", SCANS,
         f"{_MODEL} forward and backward, float32", "fpscan", "accelerated-scan Triton"),
    _gpu("`discounted_cumsum`, 1,024 x 65,536 float32", SCANS, "discounted_cumsum 1,024 x 65,536, float32",
         "torch-discounted-cumsum"),
    _gpu("`bincount`, 2^27 int64 keys in 256 bins", COUNTS, "bincount 134,217,728 in 256 bins uniform, int64",
         "torch.bincount"),
    Headline("Gaussian sum over 10^5 x 10^5 points in 3-D", GPU,
             Source("bench_cuda_pairs.Reductions.track_milliseconds", (_POINTS,)),
             peers=(Source("bench_cuda_pairs.Peers.track_ratio_to_peer", (f"KeOps: {_POINTS}",), "KeOps"),)),
    Headline("LSTM by `te`, 1,000 steps, batch 64, 128 hidden", GPU,
             peers=tuple(Source("bench_cuda_user_scans.Peers.track_ratio_to_peer", (f"{peer}: {_LSTM}",), peer)
                         for peer in ("torch.nn.LSTM", "a loop in torch"))),
    Headline("`cumulative_sum`, 10,000,000 float32", CPU,
             peers=(Source("bench_scans.Peers.track_np_cumsum", name="np.cumsum"),)),
    _line("discounted_cumsum", Source("bench_scans.Peers.track_lfilter", name="scipy's lfilter")),
    _line("linear_recurrence"),
    Headline("`bincount`, 10,000,000 int64 keys in 256 bins", CPU,
             Source("bench_counts.Bincount.time_bincount", ("int64, 256 bins",)),
             peers=(Source("bench_counts.Bincount.track_ratio_to_numpy", ("int64, 256 bins",), "np.bincount"),
                    Source(CPU_PEERS, ("torch.bincount: bincount 20,000,000 in 256 bins uniform, int64",),
                           "torch.bincount"))),
    Headline("`histogram`, 10,000,000 float32 in 100 bins", CPU,
             Source("bench_histograms.Histogram.time_histogram", ("float32, 100 bins",)),
             Source("bench_histograms.Histogram.track_of_copy", ("float32, 100 bins",)),
             (Source("bench_histograms.Histogram.track_ratio_to_numpy", ("float32, 100 bins",), "np.histogram"),
              Source(CPU_PEERS, ("boost-histogram: histogram 20,000,000 in 100 bins uniform, float32",),
                     "boost-histogram"))),
    Headline("GARCH(1,1) by `scan`, 10,000 series of 1,000", CPU,
             Source("bench_user_scans.Updates.time_scan", _GARCH),
             Source("bench_user_scans.Updates.track_of_copy", _GARCH),
             (Source("bench_user_scans.Updates.track_ratio_to_numba", _GARCH, "a numba loop"),)),
)  # fmt: skip


def table(results: Results) -> list[str]:
    """The lines of the table; the last column has the fastest other package, and what is used most."""
    rows: list[list[str]] = []
    measured: dict[str, list[Measurement]] = {GPU: [], CPU: []}
    for line in HEADLINES:
        time, copy = (source.get(results, line.machine) if source else None for source in (line.time, line.copy))
        peers = line.measured_peers(results)
        fastest_first = dict.fromkeys([*sorted(peers, key=lambda peer: peer[1].value)[:1], *peers[:1]])
        cells = [
            page_tables.time_text(time.value) if time else "",
            page_tables.fraction(copy.value) if copy else "",
            ", ".join(f"{name} {page_tables.ratio(value.value)}" for name, value in fastest_first),
        ]
        if any(cells):
            rows.append([line.operation, SHORT[line.machine], *cells])
        shown = (time, copy, *(value for _, value in fastest_first))
        measured[line.machine] += [value for value in shown if value is not None]
    lines = page_tables.table_lines(("operation", "machine", "time", "of a copy", "other packages"), rows)
    commits = (f"{MACHINES[machine]}: {page_tables.measured_at(values)}" for machine, values in measured.items())
    return [*lines, "", f"Dates and commits of the measurements. {'; '.join(commits)}."]


def panels(results: Results) -> list[Panel]:
    """The picture: how many times the other packages' speed upsweep reaches, on a CPU and a GPU."""
    axis = "times as fast as the other package"
    return [
        Panel(MACHINES[machine], axis, "ratio", [
            Bar(line.operation.replace("`", ""), name, value.value)
            for line in HEADLINES if line.machine == machine
            for name, value in line.measured_peers(results)
        ])
        for machine in (CPU, GPU)
    ]  # fmt: skip
