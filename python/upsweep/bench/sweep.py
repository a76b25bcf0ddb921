"""A gated recurrence over a range of lengths, under the flags of fpscan's own benchmark.

    python -m upsweep bench scans --device cuda --batch 2 --dim 256 --seqlens 1024 4096 --outdir docs

times upsweep, the peers that are installed and a baseline in plain torch operations (a Hillis-Steele scan),
each after its answer was checked, and writes two figures: time, and the others' time over upsweep's, against
length.
Needs no torch until it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from upsweep.bench.cuda_cases import BASELINE, GATED, ITEMSIZES, Case
from upsweep.bench.report import Row

__all__ = ["FIGURES", "Sweep", "add_arguments", "given", "write_figures"]

FIGURES = ("latency_vs_seqlen.png", "speedup_vs_seqlen.png")
_FLAGS = ("batch", "dim", "dtype", "seqlens", "iters", "warmup", "outdir")
_LENGTHS = tuple(1 << power for power in range(5, 17))


def _count(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number of at least {least}, got {text}")
        return int(text)

    convert.__name__ = "int"  # what argparse calls it where it is no number
    return convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; each is None where it is not given."""
    title = "a sweep over lengths (scans --device cuda): any of these flags, which are fpscan's, starts it"
    group = parser.add_argument_group(title)
    positive = _count(1)
    group.add_argument("--batch", type=positive, metavar="N", help="default 2")
    group.add_argument("--dim", type=positive, metavar="N", help="default 256")
    group.add_argument("--dtype", choices=tuple(ITEMSIZES), help="default float32")
    group.add_argument("--seqlens", type=positive, nargs="+", metavar="N", help="default 32 to 65536, doubling")
    group.add_argument("--iters", type=positive, metavar="N", help="samples, whose median counts; default 100")
    group.add_argument("--warmup", type=_count(0), metavar="N", help="samples before them; default 10")
    group.add_argument("--outdir", type=Path, metavar="DIR", help="where the figures go; default: here")


def given(options: argparse.Namespace) -> list[str]:
    """The sweep's flags that were given."""
    return [f"--{name}" for name in _FLAGS if getattr(options, name) is not None]


@dataclass(frozen=True)
class Sweep:
    """The flags with their defaults."""

    batch: int = 2
    dim: int = 256
    dtype: str = "float32"
    seqlens: Sequence[int] = _LENGTHS
    iters: int = 100
    warmup: int = 10
    outdir: Path = Path()

    @classmethod
    def of(cls, options: argparse.Namespace) -> Sweep:
        """Those that were given, the others as they are by default; ``--quick``: fewer samples and lengths."""
        found = {name: getattr(options, name) for name in _FLAGS if getattr(options, name) is not None}
        quick = {"iters": 10, "warmup": 2, "seqlens": _LENGTHS[::4]} if options.quick else {}
        return cls(**{**quick, **found})

    def cases(self) -> list[Case]:
        """One for each length, against every peer that scans with gates, and the baseline."""
        peers = tuple((name, None) for name in (*GATED, BASELINE))
        shapes = [(self.batch, self.dim, length) for length in self.seqlens]
        return [Case("linear_recurrence", shape, self.dtype, peers=peers) for shape in shapes]


def write_figures(folder: Path, title: str, rows: Sequence[Row]) -> list[Path]:
    """Write the two figures from the sweep's rows; returns their paths.

    Raises
    ------
    ImportError
        Without matplotlib.
    """
    from upsweep.bench import figures

    folder.mkdir(parents=True, exist_ok=True)
    times, ratios = (folder / name for name in FIGURES)
    with figures.axes(times, title) as (axes,):
        figures.lines(axes, rows, lambda row: row.method, lambda row: row.seconds and row.seconds * 1e3)
        axes.set_yscale("log")
        axes.set_ylabel("median time of a forward scan, ms")
    with figures.axes(ratios, title) as (axes,):
        others = [row for row in rows if row.unit == "x"]
        figures.lines(axes, others, lambda row: row.method, lambda row: row.figure)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.set_ylabel("time over upsweep's time")
    return [times, ratios]
